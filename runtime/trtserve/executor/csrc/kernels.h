// The arithmetic of the decoder for one instruction set. Every function computes a row from that row's own inputs with
// one fixed order of operations, so its bits depend neither on how many rows are computed together nor on which
// thread computes them. Between instruction sets bits may differ.
#pragma once
#include <cstdint>

namespace trtlookup::cpu {

enum class Storage : int { kFloat32, kFloat16, kBFloat16 };

static constexpr std::int64_t storage_bytes(Storage s) { return s == Storage::kFloat32 ? 4 : 2; }

// What happens to a linear layer's sums y (bias added).
enum class Epilogue : int {
  kStore,    // out = y
  kAdd,      // out += y
  kSiluMul,  // panels hold gate and up side by side: out = silu(y_gate) * y_up
};

// Positions of one block of transposed keys.
inline constexpr int kKeyBlock = 16;
// Query rows attended together: they share the keys and values while those are in the cache.
inline constexpr int kAttendRows = 16;
// Keys of one span. Spans are cut at absolute positions and each is attended on its own, so that threads can share out
// one row's keys; a row's spans are then merged in ascending order, whoever computed them.
inline constexpr int kSpanKeys = 256;

// y = x W^T over a packed matrix: panels of 2 * lanes outputs, each panel [k][2 * lanes], zero-padded.
struct LinearArgs {
  const float* x;  // [rows, k], rows `x_stride` floats apart
  std::int64_t x_stride;
  const void* weights;
  Storage storage;
  std::int64_t k;
  const float* bias;  // [panels * 2 * lanes], or null
  float* out;         // [rows, n], rows `out_stride` floats apart
  std::int64_t out_stride;
  std::int64_t n;  // columns of out
  Epilogue epilogue;
};

// Attention of consecutive rows of one sequence for the query heads that share one KV head. Row i is at position
// `position + i` and sees positions up to its own, the last `window` of them if window > 0.
struct AttendArgs {
  const float* q;  // [rows, group, head_dim], rows `q_stride` floats apart, heads dense
  std::int64_t q_stride;
  const float* keys;    // [blocks][head_dim][kKeyBlock]
  const float* values;  // [positions][value_stride]
  int rows;             // 1 to kAttendRows
  int group;
  int head_dim;
  int value_stride;  // head_dim rounded up to 16
  std::int64_t position;
  std::int64_t window;
  float scale;
  float* out;  // like q
  std::int64_t out_stride;
};

// What attending keys leaves of `rows * group` heads: unnormalised values [heads][value_stride], then the highest score
// [heads], then the sum of weights [heads], which is 0 for a row that sees none of the keys.
static constexpr std::int64_t partial_floats(int rows, int group, int value_stride) {
  return static_cast<std::int64_t>(rows) * group * (value_stride + 2);
}
// Floats `attend_span` needs as `scores`.
static constexpr std::int64_t score_floats(int group) { return 64 * static_cast<std::int64_t>(group); }

struct Kernels {
  const char* name;
  int lanes;  // a panel holds 2 * lanes outputs
  // One panel for rows [row_begin, row_end). `scratch`: 2 * lanes * k floats. `next`: the panel this thread reads
  // after this one, prefetched meanwhile, or null.
  void (*linear_panel)(const LinearArgs&, std::int64_t panel, std::int64_t row_begin, std::int64_t row_end,
                       const void* next, float* scratch);
  // out = x / sqrt(mean(x^2) + eps) * weight, over n. out may be x.
  void (*rms_norm)(const float* x, const float* weight, float* out, std::int64_t n, float eps);
  // Rotate-half RoPE in place. cos, sin: [head_dim / 2] of this position.
  void (*rope)(float* head, const float* cos, const float* sin, int head_dim);
  // Keys [span * kSpanKeys, (span + 1) * kSpanKeys) as far as each row sees them, into `partial`.
  void (*attend_span)(const AttendArgs&, std::int64_t span, float* partial, float* scores);
  // Adds the next span's `partial` to `state`, which holds the spans before it.
  void (*merge_span)(const AttendArgs&, const float* partial, float* state);
  // Writes `out` from the merged spans.
  void (*finish_attend)(const AttendArgs&, const float* state);
  // Row `row` of a packed matrix as float32 [k].
  void (*unpack_row)(const void* weights, Storage, std::int64_t k, std::int64_t row, float* out);
  // A plain 16-bit row as float32 [k].
  void (*widen_row)(const std::uint16_t* row, Storage, std::int64_t k, float* out);
};

// Null where this build has no such level. Call only the level that `levels.h` says this machine has.
const Kernels* kernels_generic();
const Kernels* kernels_avx2();
const Kernels* kernels_avx512();

}  // namespace trtlookup::cpu
