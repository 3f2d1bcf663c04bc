// One row's target token, for any group of threads: a CUDA block, or a single host thread.
//
// A group `g` has rank()/size() over its threads, warp()/warps() and lane()/lanes() within them, sync(), warp-wide
// sum/max/scan, and add() to a shared counter. A host thread is a group of one warp of one lane.
#pragma once
#include "numbers.cuh"

namespace TL_NAMESPACE {

// What the kernels read of one sequence. Addresses are in the memory of whoever runs the code; 0 means absent.
// Mirrored by trtplugins.sampling_arrays; 96 bytes.
struct Sampling {
  u64 seed;
  i64 position;         // of the token row 0 chooses
  const int* counts;    // [vocab]: kPromptBit, and occurrences in the output below it
  const int* bias_tokens;   // [num_bias], distinct
  const float* bias_values; // [num_bias]
  const int* ban_tokens;    // [num_ban]
  const u32* mask;          // [rows, ceil(vocab / 32)]
  float temperature;  // 0: greedy
  float top_p;        // 1: off
  float min_p;        // 0: off
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  int top_k;  // 0: off
  int num_bias;
  int num_ban;
  int ban_rows;
};
static_assert(sizeof(Sampling) == 96, "trtplugins.sampling_arrays writes this layout");

constexpr int kPromptBit = 1 << 30;
constexpr int kBins = 2048;
constexpr int kMaxWarps = 32;

// What a group shares for a reduction, and while it samples a row.
struct GroupShared {
  u64 warps[kMaxWarps];
};
struct RowShared : GroupShared {
  u64 bins[kBins];
  u64 taken;
  u32 digit;
  int token;
};

// ---------------------------------------------------------------------------------------------- groups

template <class G>
TL_FN u64 group_max(const G& g, GroupShared& shared, u64 value) {
  value = g.warp_max(value);
  if (g.lane() == 0) shared.warps[g.warp()] = value;
  g.sync();
  u64 highest = shared.warps[0];
  for (int w = 1; w < g.warps(); ++w) highest = shared.warps[w] > highest ? shared.warps[w] : highest;
  g.sync();  // before the next reduction writes
  return highest;
}

template <class G>
TL_FN u64 group_sum(const G& g, GroupShared& shared, u64 value) {
  value = g.warp_sum(value);
  if (g.lane() == 0) shared.warps[g.warp()] = value;
  g.sync();
  u64 total = 0;
  for (int w = 0; w < g.warps(); ++w) total += shared.warps[w];
  g.sync();
  return total;
}

// ---------------------------------------------------------------------------------------------- logits processing

TL_FN bool has_penalties(const Sampling& s) {
  return s.counts && (s.repetition_penalty != 1.0f || s.presence_penalty != 0.0f || s.frequency_penalty != 0.0f);
}

TL_FN bool has_processing(const Sampling& s, int row) {
  return has_penalties(s) || s.num_bias > 0 || (s.num_ban > 0 && row < s.ban_rows) || s.mask;
}

// `count`: the token's entry of counts, plus its occurrences among the drafts before the row.
TL_FN float penalized(const Sampling& s, float x, int count) {
  if (count != 0) x = x > 0.0f ? div(x, s.repetition_penalty) : mul(x, s.repetition_penalty);
  const int occurrences = count & (kPromptBit - 1);
  if (occurrences > 0) {
    x = add(x, -mul(s.frequency_penalty, static_cast<float>(occurrences)));
    x = add(x, -s.presence_penalty);
  }
  return x;
}

TL_FN bool is_allowed(const Sampling& s, int row, int vocab, int token) {
  if (!s.mask) return true;
  const u32* words = s.mask + static_cast<i64>(row) * ((vocab + 31) / 32);
  return (words[token >> 5] >> (token & 31)) & 1u;
}

// Writes the row's processed logits to out[vocab]. `tokens`: the sequence's row tokens; tokens[1..row] are the drafts
// before this row, and count as output for it.
template <class G, class Logit>
TL_FN void process_row(const G& g, const Logit* logits, int vocab, const Sampling& s, int row, const int* tokens,
                       float* out) {
  const bool penalties = has_penalties(s);
  for (int t = g.rank(); t < vocab; t += g.size()) {
    float x = to_float(logits[t]);
    if (penalties) x = penalized(s, x, s.counts[t]);
    out[t] = is_allowed(s, row, vocab, t) ? x : minus_infinity();
  }
  g.sync();
  if (penalties) {
    for (int j = 1 + g.rank(); j <= row; j += g.size()) {
      const int token = tokens[j];
      if (token < 0 || token >= vocab || !is_allowed(s, row, vocab, token)) continue;
      int before = 0, all = 0;
      for (int i = 1; i <= row; ++i) {
        all += tokens[i] == token;
        before += i < j && tokens[i] == token;
      }
      if (before == 0) out[token] = penalized(s, to_float(logits[token]), s.counts[token] + all);
    }
    g.sync();
  }
  for (int j = g.rank(); j < s.num_bias; j += g.size()) {
    const int token = s.bias_tokens[j];
    if (token < 0 || token >= vocab) continue;
    const float bias = s.bias_values[j];
    out[token] = bias == minus_infinity() ? bias : add(out[token], bias);  // a ban holds for +inf and NaN too
  }
  g.sync();
  if (row < s.ban_rows) {
    for (int j = g.rank(); j < s.num_ban; j += g.size()) {
      const int token = s.ban_tokens[j];
      if (token >= 0 && token < vocab) out[token] = minus_infinity();
    }
    g.sync();
  }
}

// ---------------------------------------------------------------------------------------------- choosing

// The best of the tokens one thread sees, in ascending order; one comparison a token.
struct Best {
  float logit = minus_infinity();
  int token = -1;
  bool nan = false;

  TL_FN void see(float x, int t) {
    nan |= is_nan(x);
    if (x > logit) {
      logit = x;
      token = t;
    }
  }
  // 0, which anything beats, if nothing is above -inf.
  TL_FN u64 as_candidate() const {
    if (nan) return candidate(kNanKey, 0);
    return token < 0 ? 0 : candidate(key_of(logit), token);
  }
};

template <class G, class Logit>
TL_FN u64 best_candidate(const G& g, GroupShared& shared, const Logit* logits, int vocab) {
  Best best;
  for (int t = g.rank(); t < vocab; t += g.size()) best.see(to_float(logits[t]), t);
  return group_max(g, shared, best.as_candidate());
}

// A row as keys and weights, computed from logits at each use.
template <class Logit>
struct LogitRow {
  const Logit* logits;
  float highest;
  float temperature;
  TL_FN u32 key(int t) const { return key_of(to_float(logits[t])); }
  TL_FN u64 weight(int t) const { return weight_at(to_float(logits[t]), highest, temperature); }
};

// The highest key K such that tokens with key >= K weigh at least `goal` together (1 <= goal <= what all weigh), by
// radix selection from the top digit: 11, 11 and 10 bits. Tokens that share the boundary's key are all in. Weighs by
// count or by weight; sums are integers, so the order of adding does not matter.
template <bool kByCount, class G, class Row>
TL_FN u32 select_key(const G& g, RowShared& shared, const Row& row, int vocab, u64 goal) {
  u32 prefix = 0;
  int prefix_shift = 32;
  for (int shift = 21; prefix_shift > 0; shift = shift == 21 ? 10 : 0) {
    for (int b = g.rank(); b < kBins; b += g.size()) shared.bins[b] = 0;
    g.sync();
    for (int t = g.rank(); t < vocab; t += g.size()) {
      const u32 key = row.key(t);
      if (prefix_shift < 32 && (key >> prefix_shift) != prefix) continue;
      const u64 weight = kByCount ? 1 : row.weight(t);
      if (weight) g.add(&shared.bins[(key >> shift) & ((1u << (prefix_shift - shift)) - 1)], weight);
    }
    g.sync();
    if (g.warp() == 0) {
      // Each lane owns a stretch of bins, lane 0 the highest; one of them holds the bin that reaches the goal.
      const int stretch = kBins / g.lanes();
      const int top = kBins - 1 - g.lane() * stretch;
      u64 own = 0;
      for (int b = 0; b < stretch; ++b) own += shared.bins[top - b];
      u64 above = g.warp_scan(own) - own;
      if (above < goal && goal - above <= own) {
        int bin = top;
        while (above + shared.bins[bin] < goal) above += shared.bins[bin--];
        shared.digit = static_cast<u32>(bin);
        shared.taken = above;
      }
    }
    g.sync();
    prefix = (prefix << (prefix_shift - shift)) | shared.digit;
    goal -= shared.taken;
    prefix_shift = shift;
  }
  return prefix;
}

// Draws a token in proportion to its weight among those kept by top-k, then top-p, then min-p: the first token, in
// token order, at which the running sum of weights exceeds floor(random * total / 2^64).
template <class G, class Row>
TL_FN int sample_row(const G& g, RowShared& shared, const Row& row, int vocab, const Sampling& s, u64 random) {
  u32 floor = 0;
  if (s.top_k > 0 && s.top_k < vocab) floor = select_key<true>(g, shared, row, vocab, s.top_k);
  if (s.top_p < 1.0f) {
    u64 own = 0;
    for (int t = g.rank(); t < vocab; t += g.size()) own += row.key(t) >= floor ? row.weight(t) : 0;
    // The goal is at most what top-k keeps, so the new floor is not below the old one.
    const u64 goal = portion(group_sum(g, shared, own), fixed_share(s.top_p));
    floor = select_key<false>(g, shared, row, vocab, goal > 0 ? goal : 1);
  }
  const u64 least = fixed_share(s.min_p);
  auto kept = [&](int t) -> u64 {
    const u64 weight = row.weight(t);
    return row.key(t) >= floor && weight >= least ? weight : 0;
  };

  // Each warp sums a span of consecutive tokens; the span in which the running sum passes the draw is walked again.
  const int span = (vocab + g.warps() - 1) / g.warps();
  const int begin = g.warp() * span;
  const int end = vocab - begin < span ? vocab : begin + span;
  u64 own = 0;
  for (int t = begin + g.lane(); t < end; t += g.lanes()) own += kept(t);
  own = g.warp_sum(own);
  if (g.lane() == 0) shared.warps[g.warp()] = own;
  g.sync();
  u64 total = 0, before = 0;
  for (int w = 0; w < g.warps(); ++w) {
    if (w < g.warp()) before += shared.warps[w];
    total += shared.warps[w];
  }
  const u64 draw = mul_high(random, total);
  if (before <= draw && draw - before < own) {  // the same for every lane of a warp
    for (int base = begin; base < end; base += g.lanes()) {
      const int t = base + g.lane();
      const u64 weight = t < end ? kept(t) : 0;
      const u64 upto = before + g.warp_scan(weight);
      if (upto - weight <= draw && draw < upto) shared.token = t;
      before = g.last_lane(upto);
      if (before > draw) break;
    }
  }
  g.sync();
  const int token = shared.token;
  g.sync();  // before the group's next row writes
  return token;
}

// A row's target token, or -1 when it has none: a NaN among its processed logits, or nothing above -inf.
// `scratch`: float[vocab], used where the sequence has logits processing.
template <class G, class Logit>
TL_FN int row_target(const G& g, RowShared& shared, const Logit* logits, int vocab, const Sampling& s, int row,
                     const int* tokens, float* scratch) {
  const u64 random = random_bits(s.seed, static_cast<u64>(s.position + row));
  if (has_processing(s, row)) {
    process_row(g, logits, vocab, s, row, tokens, scratch);
    const u64 best = best_candidate(g, shared, scratch, vocab);
    if (!is_choosable(best)) return -1;
    if (s.temperature == 0.0f) return candidate_token(best);
    return sample_row(g, shared, LogitRow<float>{scratch, logit_of(candidate_key(best)), s.temperature}, vocab, s, random);
  }
  const u64 best = best_candidate(g, shared, logits, vocab);
  if (!is_choosable(best)) return -1;
  if (s.temperature == 0.0f) return candidate_token(best);
  return sample_row(g, shared, LogitRow<Logit>{logits, logit_of(candidate_key(best)), s.temperature}, vocab, s, random);
}

}  // namespace TL_NAMESPACE
