#include "decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace trtlookup::cpu {

namespace {

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// Rows one linear task takes of a long prefill, so that tasks stay plentiful and their rows stay in the L2 cache.
constexpr int kTaskRows = 96;
// Most tasks per thread: enough to even out an interrupted thread, few enough that claiming costs nothing.
constexpr int kTasksPerThread = 16;
// Most spans that threads share out in one layer.
constexpr std::int64_t kMostSpans = 2048;

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

}  // namespace

Decoder::Decoder(DecoderShape shape, const Kernels& kernels, int threads, std::vector<float> cos,
                 std::vector<float> sin)
    : shape_(std::move(shape)),
      kernels_(kernels),
      cos_(std::move(cos)),
      sin_(std::move(sin)),
      value_stride_(round_up(shape_.head_dim, 16)),
      padded_positions_(round_up(shape_.positions, kKeyBlock)),
      head_floats_(padded_positions_ * (shape_.head_dim + value_stride_)),
      qkv_size_(static_cast<std::int64_t>(shape_.num_heads + 2 * shape_.num_kv_heads) * shape_.head_dim),
      layers_(shape_.num_layers),
      pool_(threads) {
  const auto table = static_cast<std::size_t>(shape_.positions * (shape_.head_dim / 2));
  if (cos_.size() != table || sin_.size() != table)
    refuse("cos and sin must have positions * head_dim / 2 = " + std::to_string(table) + " entries");
  if (shape_.windows.size() != layers_.size()) refuse("windows must have one entry per layer");
  for (std::size_t i = 0; i < layers_.size(); ++i) layers_[i].window = shape_.windows[i];
  lay_out();

  cache_ = Pages(4 * head_floats_ * shape_.num_kv_heads * shape_.slots * shape_.num_layers, false);

  const std::int64_t group = shape_.num_heads / shape_.num_kv_heads;
  const std::int64_t widest = std::max({static_cast<std::int64_t>(shape_.hidden_size),
                                        static_cast<std::int64_t>(shape_.intermediate_size),
                                        static_cast<std::int64_t>(shape_.num_heads) * shape_.head_dim});
  partial_floats_ = round_up(partial_floats(kAttendRows, static_cast<int>(group), static_cast<int>(value_stride_)), 16);
  scratch_floats_ = std::max(2 * kernels_.lanes * widest,
                             2 * partial_floats_ + score_floats(static_cast<int>(group)));
  scratch_floats_ = round_up(scratch_floats_, 1024);
  for (int pass = 0; pass < 2; ++pass) {
    Carver carve(work_.data());
    const std::int64_t rows = shape_.max_rows;
    x_ = carve.take<float>(rows * shape_.hidden_size);
    normed_ = carve.take<float>(rows * shape_.hidden_size);
    qkv_ = carve.take<float>(rows * qkv_size_);
    attended_ = carve.take<float>(rows * shape_.num_heads * shape_.head_dim);
    inner_ = carve.take<float>(rows * shape_.intermediate_size);
    scratch_ = carve.take<float>(scratch_floats_ * pool_.threads());
    partials_ = carve.take<float>(partial_floats_ * kMostSpans);
    if (pass == 0) work_ = Pages(carve.used(), false);
  }
}

// Places every tensor in one range of memory, in the order a forward reads them.
void Decoder::lay_out() {
  const std::int64_t h = shape_.hidden_size, f = shape_.intermediate_size, lanes = kernels_.lanes;
  const std::int64_t q = static_cast<std::int64_t>(shape_.num_heads) * shape_.head_dim;
  const std::int64_t kv = static_cast<std::int64_t>(shape_.num_kv_heads) * shape_.head_dim;
  for (int pass = 0; pass < 2; ++pass) {
    Carver carve(weights_.data());
    destinations_.clear();
    const auto vector = [&](const std::string& name, float*& where, std::int64_t n) {
      where = carve.take<float>(n);
      destinations_[name] = {nullptr, where, n, 1, 0, -1, false};
    };
    const auto matrix = [&](Matrix& m, std::int64_t n, std::int64_t k, bool bias) {
      m.n = n, m.k = k, m.panels = (n + 2 * lanes - 1) / (2 * lanes);
      m.panel_bytes = storage_bytes(shape_.storage) * 2 * lanes * k;
      m.weights = carve.take<char>(m.panels * m.panel_bytes);
      if (bias) m.bias = carve.take<float>(m.panels * 2 * lanes);
    };
    const auto part = [&](const std::string& name, Matrix& m, std::int64_t rows, std::int64_t first, int interleave) {
      destinations_[name] = {&m, nullptr, rows, m.k, first, interleave, false};
      if (m.bias) destinations_[name + "_bias"] = {&m, m.bias, rows, 1, first, interleave, false};
    };
    for (int i = 0; i < shape_.num_layers; ++i) {
      Layer& l = layers_[i];
      const std::string p = "layers." + std::to_string(i) + ".";
      vector(p + "attn_norm", l.attn_norm, h);
      matrix(l.qkv, q + 2 * kv, h, shape_.attention_bias);
      part(p + "q", l.qkv, q, 0, -1);
      part(p + "k", l.qkv, kv, q, -1);
      part(p + "v", l.qkv, kv, q + kv, -1);
      if (shape_.qk_norm) {
        vector(p + "q_norm", l.q_norm, shape_.head_dim);
        vector(p + "k_norm", l.k_norm, shape_.head_dim);
      }
      matrix(l.o, h, q, shape_.output_bias);
      part(p + "o", l.o, h, 0, -1);
      vector(p + "mlp_norm", l.mlp_norm, h);
      matrix(l.gate_up, 2 * round_up(f, lanes), h, shape_.mlp_bias);
      part(p + "gate", l.gate_up, f, 0, 0);
      part(p + "up", l.gate_up, f, 0, 1);
      matrix(l.down, h, f, shape_.mlp_bias);
      part(p + "down", l.down, h, 0, -1);
    }
    vector("final_norm", final_norm_, h);
    matrix(lm_head_, shape_.vocab_size, h, false);
    part(shape_.tied ? "embed" : "lm_head", lm_head_, shape_.vocab_size, 0, -1);
    if (pass == 0) weights_ = Pages(carve.used(), true);
  }
  if (!shape_.tied) {
    const auto n = static_cast<std::size_t>(shape_.vocab_size) * h;
    (shape_.storage == Storage::kFloat32) ? embed32_.resize(n) : embed16_.resize(n);
    destinations_["embed"] = {nullptr, nullptr, shape_.vocab_size, h, 0, -1, false};
  }
}

std::int64_t Decoder::packed_row(const Destination& d, std::int64_t row) const {
  const std::int64_t lanes = kernels_.lanes;
  if (d.interleave < 0) return d.first + row;
  return row / lanes * 2 * lanes + d.interleave * lanes + row % lanes;
}

bool Decoder::is_matrix(const std::string& name) const {
  const auto it = destinations_.find(name);
  if (it == destinations_.end()) refuse("this decoder has no tensor " + name);
  return it->second.vector == nullptr;
}

void Decoder::load(const std::string& name, const void* data, std::int64_t size) {
  const bool matrix = is_matrix(name);
  Destination& d = destinations_[name];
  if (size != d.rows * d.k)
    refuse(name + " has " + std::to_string(size) + " elements; needed: " + std::to_string(d.rows * d.k));
  d.loaded = true;
  const std::int64_t panel = 2 * kernels_.lanes, bytes = storage_bytes(shape_.storage);
  if (!matrix) {
    const float* from = static_cast<const float*>(data);
    for (std::int64_t r = 0; r < size; ++r) d.vector[d.matrix ? packed_row(d, r) : r] = from[r];
  } else if (!d.matrix) {
    void* to = embed32_.empty() ? static_cast<void*>(embed16_.data()) : embed32_.data();
    std::memcpy(to, data, static_cast<std::size_t>(size * bytes));
  } else {
    const auto pack = [&](auto* to, const auto* from) {
      pool_.run(static_cast<int>((d.rows + panel - 1) / panel), [&](int task, int, int) {
        for (std::int64_t r = task * panel; r < std::min(d.rows, (task + 1) * panel); ++r) {
          const std::int64_t row = packed_row(d, r);
          auto* column = to + row / panel * panel * d.k + row % panel;
          for (std::int64_t i = 0; i < d.k; ++i) column[i * panel] = from[r * d.k + i];
        }
      });
    };
    if (bytes == 4)
      pack(static_cast<float*>(d.matrix->weights), static_cast<const float*>(data));
    else
      pack(static_cast<std::uint16_t*>(d.matrix->weights), static_cast<const std::uint16_t*>(data));
  }
}

std::vector<std::string> Decoder::missing() const {
  std::vector<std::string> names;
  for (const auto& [name, d] : destinations_)
    if (!d.loaded) names.push_back(name);
  return names;
}

float* Decoder::keys(int layer, int slot, int head) {
  const std::int64_t i = (static_cast<std::int64_t>(layer) * shape_.slots + slot) * shape_.num_kv_heads + head;
  return reinterpret_cast<float*>(cache_.data()) + i * head_floats_;
}

float* Decoder::values(int layer, int slot, int head) {
  return keys(layer, slot, head) + padded_positions_ * shape_.head_dim;
}

void Decoder::check(const Batch& batch) const {
  const std::size_t n = batch.slots.size();
  if (batch.lengths.size() != n || batch.num_rows.size() != n)
    refuse("slots, lengths and num_rows must be equally long; they have " + std::to_string(n) + ", " +
           std::to_string(batch.lengths.size()) + " and " + std::to_string(batch.num_rows.size()) + " entries");
  std::int64_t rows = 0;
  std::vector<bool> taken(shape_.slots);
  for (std::size_t b = 0; b < n; ++b) {
    const std::string where = "sequence " + std::to_string(b) + ": ";
    const std::int64_t slot = batch.slots[b], length = batch.lengths[b], count = batch.num_rows[b];
    if (slot < 0 || slot >= shape_.slots)
      refuse(where + "slot is " + std::to_string(slot) + "; allowed: 0 to " + std::to_string(shape_.slots - 1));
    if (taken[slot]) refuse(where + "slot " + std::to_string(slot) + " is already in this batch");
    taken[slot] = true;
    if (count < 1) refuse(where + "has " + std::to_string(count) + " rows; allowed: at least 1");
    if (length < 0 || length + count > shape_.positions)
      refuse(where + "length " + std::to_string(length) + " + " + std::to_string(count) + " rows; the slot holds " +
             std::to_string(shape_.positions) + " positions");
    rows += count;
  }
  if (rows != static_cast<std::int64_t>(batch.tokens.size()))
    refuse("num_rows add up to " + std::to_string(rows) + " but there are " + std::to_string(batch.tokens.size()) +
           " tokens");
  if (rows > shape_.max_rows)
    refuse(std::to_string(rows) + " rows in one forward; allowed: " + std::to_string(shape_.max_rows));
  for (std::size_t i = 0; i < batch.tokens.size(); ++i)
    if (batch.tokens[i] < 0 || batch.tokens[i] >= shape_.vocab_size)
      refuse("token " + std::to_string(batch.tokens[i]) + " in row " + std::to_string(i) + "; allowed: 0 to " +
             std::to_string(shape_.vocab_size - 1));
  for (const std::int32_t row : batch.logit_rows)
    if (row < 0 || row >= rows)
      refuse("logit row " + std::to_string(row) + "; allowed: 0 to " + std::to_string(rows - 1));
}

template <class Work>
void Decoder::for_rows(int rows, int grain, Work&& work) {
  pool_.run((rows + grain - 1) / grain, [&](int task, int, int) {
    for (int r = task * grain; r < std::min(rows, (task + 1) * grain); ++r) work(r);
  });
}

void Decoder::linear(const float* x, std::int64_t x_stride, int rows, const Matrix& m, float* out,
                     std::int64_t out_stride, std::int64_t n, Epilogue epilogue) {
  const LinearArgs args{x, x_stride, m.weights, shape_.storage, m.k, m.bias, out, out_stride, n, epilogue};
  const std::int64_t row_tasks = (rows + kTaskRows - 1) / kTaskRows;
  const std::int64_t most = static_cast<std::int64_t>(pool_.threads()) * kTasksPerThread;
  const std::int64_t grain = std::max<std::int64_t>(1, m.panels * row_tasks / most);
  const std::int64_t panel_tasks = (m.panels + grain - 1) / grain;
  const char* weights = static_cast<const char*>(m.weights);
  pool_.run(static_cast<int>(panel_tasks * row_tasks), [&](int task, int next, int thread) {
    const std::int64_t begin = task % panel_tasks * grain, end = std::min(begin + grain, m.panels);
    const std::int64_t row = task / panel_tasks;
    const std::int64_t row_begin = rows * row / row_tasks, row_end = rows * (row + 1) / row_tasks;
    for (std::int64_t panel = begin; panel < end; ++panel) {
      const std::int64_t following = panel + 1 < end ? panel + 1 : next < 0 ? -1 : next % panel_tasks * grain;
      kernels_.linear_panel(args, panel, row_begin, row_end,
                            following < 0 ? nullptr : weights + following * m.panel_bytes,
                            scratch_ + thread * scratch_floats_);
    }
  });
}

void Decoder::norm(const float* x, const float* weight, float* out, int rows) {
  const std::int64_t h = shape_.hidden_size;
  for_rows(rows, 16, [&](int r) { kernels_.rms_norm(x + r * h, weight, out + r * h, h, shape_.rms_norm_eps); });
}

// Norms and turns one row's queries (in place) and key, and writes key and value to the cache.
void Decoder::write_kv(const Batch& batch, int layer, int row, int sequence, std::int64_t position) {
  const Layer& l = layers_[layer];
  const int d = shape_.head_dim;
  float* heads = qkv_ + row * qkv_size_;
  const float *cos = cos_.data() + position * (d / 2), *sin = sin_.data() + position * (d / 2);
  for (int h = 0; h < shape_.num_heads + shape_.num_kv_heads; ++h) {
    float* head = heads + static_cast<std::int64_t>(h) * d;
    if (shape_.qk_norm)
      kernels_.rms_norm(head, h < shape_.num_heads ? l.q_norm : l.k_norm, head, d, shape_.rms_norm_eps);
    kernels_.rope(head, cos, sin, d);
  }
  for (int h = 0; h < shape_.num_kv_heads; ++h) {
    const float* key = heads + static_cast<std::int64_t>(shape_.num_heads + h) * d;
    const float* value = key + static_cast<std::int64_t>(shape_.num_kv_heads) * d;
    float* to = keys(layer, batch.slots[sequence], h) + position / kKeyBlock * kKeyBlock * d + position % kKeyBlock;
    for (int i = 0; i < d; ++i) to[i * kKeyBlock] = key[i];
    std::memcpy(values(layer, batch.slots[sequence], h) + position * value_stride_, value, sizeof(float) * d);
  }
}

void Decoder::attend(const Batch& batch, int layer, const std::vector<Block>& blocks) {
  const int kv_heads = shape_.num_kv_heads, group = shape_.num_heads / kv_heads, d = shape_.head_dim;
  const std::int64_t out_stride = static_cast<std::int64_t>(shape_.num_heads) * d, window = layers_[layer].window;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  const auto args = [&](int unit) -> AttendArgs {  // a unit is a block and a KV head
    const Block& block = blocks[unit / kv_heads];
    const int head = unit % kv_heads, slot = batch.slots[block.sequence];
    const std::int64_t column = static_cast<std::int64_t>(head) * group * d;
    return {qkv_ + block.row * qkv_size_ + column,
            qkv_size_,
            keys(layer, slot, head),
            values(layer, slot, head),
            block.rows,
            group,
            d,
            static_cast<int>(value_stride_),
            block.position,
            window,
            scale,
            attended_ + block.row * out_stride + column,
            out_stride};
  };
  const auto first_span = [&](const Block& b) {
    return window > 0 && b.position + 1 > window ? (b.position + 1 - window) / kSpanKeys : 0;
  };
  const auto end_span = [&](const Block& b) { return (b.position + b.rows - 1) / kSpanKeys + 1; };
  const auto clear = [&](float* state, const Block& b) {  // only the totals are read before they are written
    std::fill_n(state + static_cast<std::int64_t>(b.rows) * group * (value_stride_ + 1), b.rows * group, 0.0f);
  };

  struct Part {
    int unit;
    std::int64_t span;
  };
  const int units = static_cast<int>(blocks.size()) * kv_heads;
  std::vector<Part> parts;
  std::vector<int> first_part;
  if (pool_.threads() > 1 && units < 4 * pool_.threads())
    for (int unit = 0; unit < units; ++unit) {
      const Block& b = blocks[unit / kv_heads];
      first_part.push_back(static_cast<int>(parts.size()));
      for (std::int64_t span = first_span(b); span < end_span(b); ++span) parts.push_back({unit, span});
    }
  first_part.push_back(static_cast<int>(parts.size()));

  if (static_cast<int>(parts.size()) > units && static_cast<std::int64_t>(parts.size()) <= kMostSpans) {
    pool_.run(static_cast<int>(parts.size()), [&](int i, int, int thread) {
      kernels_.attend_span(args(parts[i].unit), parts[i].span, partials_ + i * partial_floats_,
                           scratch_ + thread * scratch_floats_);
    });
    pool_.run(units, [&](int unit, int, int thread) {
      const AttendArgs a = args(unit);
      float* state = scratch_ + thread * scratch_floats_;
      clear(state, blocks[unit / kv_heads]);
      for (int i = first_part[unit]; i < first_part[unit + 1]; ++i)
        kernels_.merge_span(a, partials_ + i * partial_floats_, state);
      kernels_.finish_attend(a, state);
    });
    return;
  }
  pool_.run(units, [&](int unit, int, int thread) {
    const Block& block = blocks[unit / kv_heads];
    const AttendArgs a = args(unit);
    float* state = scratch_ + thread * scratch_floats_;
    float *partial = state + partial_floats_, *scores = partial + partial_floats_;
    clear(state, block);
    for (std::int64_t span = first_span(block); span < end_span(block); ++span) {
      kernels_.attend_span(a, span, partial, scores);
      kernels_.merge_span(a, partial, state);
    }
    kernels_.finish_attend(a, state);
  });
}

void Decoder::forward(const Batch& batch, float* logits) {
  check(batch);
  const int rows = static_cast<int>(batch.tokens.size());
  const std::int64_t h = shape_.hidden_size, f = shape_.intermediate_size;
  const std::int64_t q = static_cast<std::int64_t>(shape_.num_heads) * shape_.head_dim;

  std::vector<Block> blocks;
  std::vector<int> first_row, sequence_of;
  for (int b = 0, row = 0; b < static_cast<int>(batch.slots.size()); row += batch.num_rows[b++]) {
    first_row.push_back(row);
    sequence_of.insert(sequence_of.end(), batch.num_rows[b], b);
    const int count = batch.num_rows[b], parts = (count + kAttendRows - 1) / kAttendRows;
    for (int i = 0; i < parts; ++i) {
      const int begin = count * i / parts, end = count * (i + 1) / parts;
      blocks.push_back({b, row + begin, end - begin, static_cast<std::int64_t>(batch.lengths[b]) + begin});
    }
  }

  for_rows(rows, 4, [&](int r) {
    const std::int64_t token = batch.tokens[r];
    if (shape_.tied)
      kernels_.unpack_row(lm_head_.weights, shape_.storage, h, token, x_ + r * h);
    else if (shape_.storage == Storage::kFloat32)
      std::copy_n(embed32_.data() + token * h, h, x_ + r * h);
    else
      kernels_.widen_row(embed16_.data() + token * h, shape_.storage, h, x_ + r * h);
  });
  for (int i = 0; i < shape_.num_layers; ++i) {
    const Layer& l = layers_[i];
    norm(x_, l.attn_norm, normed_, rows);
    linear(normed_, h, rows, l.qkv, qkv_, qkv_size_, qkv_size_, Epilogue::kStore);
    for_rows(rows, 8, [&](int r) {
      const int b = sequence_of[r];
      write_kv(batch, i, r, b, batch.lengths[b] + r - first_row[b]);
    });
    // Nobody reads what the last layer would add: the cache is all a prefill leaves.
    if (i + 1 == shape_.num_layers && batch.logit_rows.empty()) return;
    attend(batch, i, blocks);
    linear(attended_, q, rows, l.o, x_, h, h, Epilogue::kAdd);
    norm(x_, l.mlp_norm, normed_, rows);
    linear(normed_, h, rows, l.gate_up, inner_, f, f, Epilogue::kSiluMul);
    linear(inner_, f, rows, l.down, x_, h, h, Epilogue::kAdd);
  }
  const int wanted = static_cast<int>(batch.logit_rows.size());
  for_rows(wanted, 16, [&](int r) {
    kernels_.rms_norm(x_ + batch.logit_rows[r] * h, final_norm_, normed_ + r * h, h, shape_.rms_norm_eps);
  });
  linear(normed_, h, wanted, lm_head_, logits, shape_.vocab_size, shape_.vocab_size, Epilogue::kStore);
}

void Decoder::copy_prefix(int source, int target, std::int64_t length) {
  for (const int slot : {source, target})
    if (slot < 0 || slot >= shape_.slots)
      refuse("slot is " + std::to_string(slot) + "; allowed: 0 to " + std::to_string(shape_.slots - 1));
  if (length < 0 || length > shape_.positions)
    refuse("length is " + std::to_string(length) + "; allowed: 0 to " + std::to_string(shape_.positions));
  if (source == target) return;
  const std::int64_t key_floats = round_up(length, kKeyBlock) * shape_.head_dim;
  pool_.run(shape_.num_layers * shape_.num_kv_heads, [&](int task, int, int) {
    const int layer = task / shape_.num_kv_heads, head = task % shape_.num_kv_heads;
    std::memcpy(keys(layer, target, head), keys(layer, source, head), sizeof(float) * key_floats);
    std::memcpy(values(layer, target, head), values(layer, source, head), sizeof(float) * length * value_stride_);
  });
}

}  // namespace trtlookup::cpu
