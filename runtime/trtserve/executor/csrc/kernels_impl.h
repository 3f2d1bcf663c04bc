// The kernels, written once over `Simd`; each instruction set's translation unit includes this after its simd header.
// Everything here has internal linkage and no standard-library templates are used: a function compiled for AVX-512
// must never be the one the linker keeps for everybody.
#pragma once
#include <cstdint>

#include "kernels.h"

namespace {

using trtlookup::cpu::AttendArgs;
using trtlookup::cpu::Epilogue;
using trtlookup::cpu::kKeyBlock;
using trtlookup::cpu::kSpanKeys;
using trtlookup::cpu::LinearArgs;
using trtlookup::cpu::Storage;

using F = Simd::F;
constexpr int kLanes = Simd::kLanes;
constexpr int kPanel = 2 * kLanes;
constexpr int kChunk = 64;  // keys between two rescalings of the running softmax

// exp(x) to about 1 ulp; 0 below -87.3 (where float32 goes subnormal), x is at most 88. NaN stays NaN.
inline F exp(F x) {
  const F low = Simd::set(-87.33654f);
  const F clamped = Simd::max(low, Simd::min(Simd::set(88.0f), x));
  const F magic = Simd::set(12582912.0f);
  const F t = Simd::fma(clamped, Simd::set(1.44269504f), magic);
  const F n = Simd::sub(t, magic);
  F r = Simd::fma(n, Simd::set(-0.693359375f), clamped);
  r = Simd::fma(n, Simd::set(2.12194440e-4f), r);
  F p = Simd::set(1.9875691500e-4f);
  p = Simd::fma(p, r, Simd::set(1.3981999507e-3f));
  p = Simd::fma(p, r, Simd::set(8.3334519073e-3f));
  p = Simd::fma(p, r, Simd::set(4.1665795894e-2f));
  p = Simd::fma(p, r, Simd::set(1.6666665459e-1f));
  p = Simd::fma(p, r, Simd::set(5.0000001201e-1f));
  p = Simd::fma(Simd::mul(p, r), r, Simd::add(r, Simd::set(1.0f)));
  return Simd::zero_where_less(Simd::mul(p, Simd::exp2_of_magic(t)), x, low);
}

inline F silu(F x) {
  const F one = Simd::set(1.0f);
  return Simd::div(x, Simd::add(one, exp(Simd::sub(Simd::zero(), x))));
}

// Fixed order: lane 0 first.
inline float sum_lanes(F v) {
  float lane[kLanes];
  Simd::store(lane, v);
  float sum = lane[0];
  for (int i = 1; i < kLanes; ++i) sum += lane[i];
  return sum;
}

struct LoadF32 {
  using T = float;
  static F load(const T* p) { return Simd::load(p); }
};
struct LoadF16 {
  using T = std::uint16_t;
  static F load(const T* p) { return Simd::load_f16(p); }
};
struct LoadBF16 {
  using T = std::uint16_t;
  static F load(const T* p) { return Simd::load_bf16(p); }
};

// One register tile: kRowsN rows by one panel. Each output is sum over k in ascending order of fma(x[k], w[k], sum),
// whatever kRowsN is.
template <int kRowsN, class Load>
void tile(const LinearArgs& a, const void* panel_weights, std::int64_t panel, std::int64_t row, const char* prefetch,
          std::int64_t prefetch_step) {
  const auto* w = static_cast<const typename Load::T*>(panel_weights);
  const float* x[kRowsN];
  F sum0[kRowsN], sum1[kRowsN];
#pragma GCC unroll 16
  for (int r = 0; r < kRowsN; ++r) {
    x[r] = a.x + (row + r) * a.x_stride;
    sum0[r] = Simd::zero();
    sum1[r] = Simd::zero();
  }
  const std::int64_t k = a.k;
  for (std::int64_t i = 0; i < k; ++i) {
    const F w0 = Load::load(w), w1 = Load::load(w + kLanes);
    w += kPanel;
    __builtin_prefetch(prefetch, 0, 2);
    if (sizeof(typename Load::T) * kPanel > 64) __builtin_prefetch(prefetch + 64, 0, 2);
    prefetch += prefetch_step;
#pragma GCC unroll 16
    for (int r = 0; r < kRowsN; ++r) {
      const F xr = Simd::set(x[r][i]);
      sum0[r] = Simd::fma(xr, w0, sum0[r]);
      sum1[r] = Simd::fma(xr, w1, sum1[r]);
    }
  }
  if (a.bias) {
    const F b0 = Simd::load(a.bias + panel * kPanel), b1 = Simd::load(a.bias + panel * kPanel + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRowsN; ++r) {
      sum0[r] = Simd::add(sum0[r], b0);
      sum1[r] = Simd::add(sum1[r], b1);
    }
  }
  const bool silu_mul = a.epilogue == Epilogue::kSiluMul;
  const int width = silu_mul ? kLanes : kPanel;
  const std::int64_t column = panel * width;
  const std::int64_t valid = a.n - column < width ? a.n - column : width;
  float* out = a.out + row * a.out_stride + column;
#pragma GCC unroll 16
  for (int r = 0; r < kRowsN; ++r, out += a.out_stride) {
    F y0 = sum0[r], y1 = sum1[r];
    if (silu_mul) y0 = Simd::mul(silu(y0), y1);
    if (valid == width) {
      if (a.epilogue == Epilogue::kAdd) {
        y0 = Simd::add(Simd::load(out), y0);
        y1 = Simd::add(Simd::load(out + kLanes), y1);
      }
      Simd::store(out, y0);
      if (!silu_mul) Simd::store(out + kLanes, y1);
    } else {
      float y[kPanel];
      Simd::store(y, y0);
      Simd::store(y + kLanes, y1);
      for (int c = 0; c < valid; ++c) out[c] = a.epilogue == Epilogue::kAdd ? out[c] + y[c] : y[c];
    }
  }
}

using Tile = void (*)(const LinearArgs&, const void*, std::int64_t, std::int64_t, const char*, std::int64_t);

template <class Load>
Tile tile_for(int rows) {
  switch (rows) {
    case 1: return tile<1, Load>;
    case 2: return tile<2, Load>;
    case 3: return tile<3, Load>;
    case 4: return tile<4, Load>;
#define TRTLOOKUP_TILE(n) \
  case n: return tile<(n <= Simd::kRows ? n : 1), Load>;
    TRTLOOKUP_TILE(5)
    TRTLOOKUP_TILE(6)
    TRTLOOKUP_TILE(7)
    TRTLOOKUP_TILE(8)
    TRTLOOKUP_TILE(9)
    TRTLOOKUP_TILE(10)
    TRTLOOKUP_TILE(11)
    TRTLOOKUP_TILE(12)
#undef TRTLOOKUP_TILE
  }
  return nullptr;
}

Tile tile_for(Storage storage, int rows) {
  switch (storage) {
    case Storage::kFloat32: return tile_for<LoadF32>(rows);
    case Storage::kFloat16: return tile_for<LoadF16>(rows);
    case Storage::kBFloat16: return tile_for<LoadBF16>(rows);
  }
  return nullptr;
}

template <class Load>
void widen(const void* from, float* to, std::int64_t n) {
  const auto* w = static_cast<const typename Load::T*>(from);
  for (std::int64_t i = 0; i < n; i += kLanes) Simd::store(to + i, Load::load(w + i));
}

void linear_panel(const LinearArgs& a, std::int64_t panel, std::int64_t row_begin, std::int64_t row_end,
                  const void* next, float* scratch) {
  const std::int64_t rows = row_end - row_begin;
  Storage storage = a.storage;
  const std::int64_t bytes = trtlookup::cpu::storage_bytes(storage) * kPanel * a.k;
  const void* w = static_cast<const char*>(a.weights) + panel * bytes;
  const std::int64_t blocks = (rows + Simd::kRows - 1) / Simd::kRows;
  // Many tiles pay for writing the widened panel once, few do not. Widening is exact, so the bits are equal.
  if (blocks > 4 && storage != Storage::kFloat32) {
    if (storage == Storage::kFloat16)
      widen<LoadF16>(w, scratch, kPanel * a.k);
    else
      widen<LoadBF16>(w, scratch, kPanel * a.k);
    w = scratch;
    storage = Storage::kFloat32;
  }
  // Each tile prefetches its share of the next panel.
  const std::int64_t step = next ? bytes / a.k / blocks : 0;
  const char* ahead = static_cast<const char*>(next ? next : w);
  std::int64_t row = row_begin;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t end = row_begin + rows * (b + 1) / blocks;
    tile_for(storage, static_cast<int>(end - row))(a, w, panel, row, ahead, step);
    ahead += step * a.k;
    row = end;
  }
}

void rms_norm(const float* x, const float* weight, float* out, std::int64_t n, float eps) {
  constexpr int kSums = 4;
  F sums[kSums] = {Simd::zero(), Simd::zero(), Simd::zero(), Simd::zero()};
  std::int64_t i = 0;
  for (; i + kSums * kLanes <= n; i += kSums * kLanes)
    for (int s = 0; s < kSums; ++s) {
      const F v = Simd::load(x + i + s * kLanes);
      sums[s] = Simd::fma(v, v, sums[s]);
    }
  float sum = sum_lanes(Simd::add(Simd::add(sums[0], sums[1]), Simd::add(sums[2], sums[3])));
  for (; i < n; ++i) sum += x[i] * x[i];
  const float scale = 1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + eps);
  for (i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

void rope(float* head, const float* cos, const float* sin, int head_dim) {
  const int half = head_dim / 2;
  for (int d = 0; d < half; ++d) {
    const float a = head[d], b = head[d + half];
    head[d] = a * cos[d] - b * sin[d];
    head[d + half] = b * cos[d] + a * sin[d];
  }
}

// scores[h][0 .. kVectors * kLanes) = q[h] . keys, for kHeads query heads. Vector v of the keys starts at
// keys + (v * kLanes / kKeyBlock) * head_dim * kKeyBlock + (v * kLanes) % kKeyBlock.
template <int kHeads, int kVectors>
inline void dot_keys(const float* q, const float* keys, int head_dim, float* scores) {
  F sum[kHeads][kVectors];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[h][v] = Simd::zero();
  for (int d = 0; d < head_dim; ++d) {
    F key[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      key[v] = Simd::load(keys + (v * kLanes / kKeyBlock) * head_dim * kKeyBlock + (v * kLanes) % kKeyBlock +
                          d * kKeyBlock);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const F qd = Simd::set(q[h * head_dim + d]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[h][v] = Simd::fma(qd, key[v], sum[h][v]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) Simd::store(scores + h * kChunk + v * kLanes, sum[h][v]);
}

// acc[h][0 .. kVectors * kLanes) = acc * keep[h] + sum over j in [begin, end) of weights[h][j] * values[j].
template <int kHeads, int kVectors>
inline void add_values(const float* weights, const float* values, std::int64_t stride, int begin, int end,
                       const float* keep, float* acc) {
  F sum[kHeads][kVectors];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      sum[h][v] = Simd::mul(Simd::load(acc + h * stride + v * kLanes), Simd::set(keep[h]));
  for (int j = begin; j < end; ++j) {
    F value[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) value[v] = Simd::load(values + j * stride + v * kLanes);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const F p = Simd::set(weights[h * kChunk + j]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[h][v] = Simd::fma(p, value[v], sum[h][v]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) Simd::store(acc + h * stride + v * kLanes, sum[h][v]);
}

// Keys [begin, end) of one chunk for one row and kHeads heads: scores, running softmax, values.
template <int kHeads>
void attend_chunk(const AttendArgs& a, const float* q, std::int64_t chunk, int begin, int end, float* scores,
                  float* acc, float* peak, float* total) {
  const float* keys = a.keys + chunk * kChunk * a.head_dim;
  const float* values = a.values + chunk * kChunk * a.value_stride;
  // Whole vectors are computed; what lies outside [begin, end) is masked, garbage or not.
  constexpr int kSpan = Simd::kUnroll * kLanes;
  constexpr int kSmall = kKeyBlock / kLanes;  // vectors of one key block
  int from = begin / kKeyBlock * kKeyBlock;
  const int to = (end + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  const int first = from;
  for (; from + kSpan <= to; from += kSpan)
    dot_keys<kHeads, Simd::kUnroll>(q, keys + from * a.head_dim, a.head_dim, scores + from);
  for (; from < to; from += kKeyBlock)
    dot_keys<kHeads, kSmall>(q, keys + from * a.head_dim, a.head_dim, scores + from);

  const F scale = Simd::set(a.scale);
  float keep[kHeads];
  for (int h = 0; h < kHeads; ++h) {
    float* s = scores + h * kChunk;
    for (int j = first; j < begin; ++j) s[j] = -__builtin_inff();
    for (int j = end; j < to; ++j) s[j] = -__builtin_inff();
    F most = Simd::set(-__builtin_inff());
    for (int j = first; j < to; j += kLanes) {
      const F v = Simd::mul(Simd::load(s + j), scale);
      Simd::store(s + j, v);
      most = Simd::max(v, most);
    }
    float lane[kLanes], high = peak[h];
    Simd::store(lane, most);
    for (int i = 0; i < kLanes; ++i) high = lane[i] > high ? lane[i] : high;
    const F top = Simd::set(high);
    F sum = Simd::zero();
    for (int j = first; j < to; j += kLanes) {
      const F p = exp(Simd::sub(Simd::load(s + j), top));
      Simd::store(s + j, p);
      sum = Simd::add(sum, p);
    }
    Simd::store(lane, exp(Simd::sub(Simd::set(peak[h]), top)));
    keep[h] = lane[0];
    total[h] = total[h] * keep[h] + sum_lanes(sum);
    peak[h] = high;
  }

  int d = 0;
  for (; d + kSpan <= a.value_stride; d += kSpan)
    add_values<kHeads, Simd::kUnroll>(scores, values + d, a.value_stride, begin, end, keep, acc + d);
  for (; d < a.value_stride; d += kKeyBlock)
    add_values<kHeads, kSmall>(scores, values + d, a.value_stride, begin, end, keep, acc + d);
}

void attend_span(const AttendArgs& a, std::int64_t span, float* partial, float* scores) {
  const std::int64_t heads = static_cast<std::int64_t>(a.rows) * a.group;
  float* acc = partial;  // [rows, group, value_stride]
  float* peak = acc + heads * a.value_stride;
  float* total = peak + heads;
  for (std::int64_t i = 0; i < heads * a.value_stride; ++i) acc[i] = 0;
  for (std::int64_t i = 0; i < heads; ++i) {
    peak[i] = -__builtin_inff();
    total[i] = 0;
  }
  constexpr int kChunks = kSpanKeys / kChunk;
  for (std::int64_t chunk = span * kChunks; chunk < (span + 1) * kChunks; ++chunk) {
    for (int row = 0; row < a.rows; ++row) {
      const std::int64_t seen = a.position + row + 1;  // this row sees [start, seen)
      const std::int64_t start = a.window > 0 && seen > a.window ? seen - a.window : 0;
      const std::int64_t low = start - chunk * kChunk, high = seen - chunk * kChunk;
      if (low >= kChunk || high <= 0) continue;
      const int begin = low > 0 ? static_cast<int>(low) : 0;
      const int end = high < kChunk ? static_cast<int>(high) : kChunk;
      const float* q = a.q + row * a.q_stride;
      for (int h = 0; h < a.group; h += 4) {
        const std::int64_t i = static_cast<std::int64_t>(row) * a.group + h;
        const float* qh = q + h * a.head_dim;
        float* acch = acc + i * a.value_stride;
        switch (a.group - h < 4 ? a.group - h : 4) {
          case 1: attend_chunk<1>(a, qh, chunk, begin, end, scores, acch, peak + i, total + i); break;
          case 2: attend_chunk<2>(a, qh, chunk, begin, end, scores, acch, peak + i, total + i); break;
          case 3: attend_chunk<3>(a, qh, chunk, begin, end, scores, acch, peak + i, total + i); break;
          default: attend_chunk<4>(a, qh, chunk, begin, end, scores, acch, peak + i, total + i); break;
        }
      }
    }
  }
}

void merge_span(const AttendArgs& a, const float* partial, float* state) {
  const std::int64_t heads = static_cast<std::int64_t>(a.rows) * a.group;
  const float* peaks = partial + heads * a.value_stride;
  const float* totals = peaks + heads;
  float* peak = state + heads * a.value_stride;
  float* total = peak + heads;
  for (std::int64_t i = 0; i < heads; ++i) {
    if (totals[i] == 0) continue;
    const float* from = partial + i * a.value_stride;
    float* to = state + i * a.value_stride;
    if (total[i] == 0) {  // the first span this row sees
      for (int d = 0; d < a.value_stride; ++d) to[d] = from[d];
      peak[i] = peaks[i];
      total[i] = totals[i];
      continue;
    }
    const float high = peaks[i] > peak[i] ? peaks[i] : peak[i];
    const F keep = exp(Simd::set(peak[i] - high)), add = exp(Simd::set(peaks[i] - high));
    for (int d = 0; d < a.value_stride; d += kLanes)
      Simd::store(to + d, Simd::fma(Simd::load(from + d), add, Simd::mul(Simd::load(to + d), keep)));
    float kept[kLanes], added[kLanes];
    Simd::store(kept, keep);
    Simd::store(added, add);
    total[i] = total[i] * kept[0] + totals[i] * added[0];
    peak[i] = high;
  }
}

void finish_attend(const AttendArgs& a, const float* state) {
  const float* total = state + static_cast<std::int64_t>(a.rows) * a.group * (a.value_stride + 1);
  for (int row = 0; row < a.rows; ++row)
    for (int h = 0; h < a.group; ++h) {
      const std::int64_t i = static_cast<std::int64_t>(row) * a.group + h;
      float* out = a.out + row * a.out_stride + static_cast<std::int64_t>(h) * a.head_dim;
      for (int d = 0; d < a.head_dim; ++d) out[d] = state[i * a.value_stride + d] / total[i];
    }
}

// [k] halves `stride` apart, as float32.
void widen_strided(const std::uint16_t* from, std::int64_t stride, Storage storage, std::int64_t k, float* out) {
  for (std::int64_t i = 0; i < k; i += kLanes) {
    const int n = k - i < kLanes ? static_cast<int>(k - i) : kLanes;
    std::uint16_t half[kLanes] = {};
    float wide[kLanes];
    for (int j = 0; j < n; ++j) half[j] = from[(i + j) * stride];
    Simd::store(wide, storage == Storage::kFloat16 ? Simd::load_f16(half) : Simd::load_bf16(half));
    for (int j = 0; j < n; ++j) out[i + j] = wide[j];
  }
}

void widen_row(const std::uint16_t* row, Storage storage, std::int64_t k, float* out) {
  widen_strided(row, 1, storage, k, out);
}

void unpack_row(const void* weights, Storage storage, std::int64_t k, std::int64_t row, float* out) {
  const std::int64_t at = row / kPanel * kPanel * k + row % kPanel;
  if (storage != Storage::kFloat32)
    return widen_strided(static_cast<const std::uint16_t*>(weights) + at, kPanel, storage, k, out);
  const float* w = static_cast<const float*>(weights) + at;
  for (std::int64_t i = 0; i < k; ++i) out[i] = w[i * kPanel];
}

constexpr trtlookup::cpu::Kernels table(const char* name) {
  return {name, kLanes, linear_panel, rms_norm, rope, attend_span, merge_span, finish_attend, unpack_row, widen_row};
}

}  // namespace
