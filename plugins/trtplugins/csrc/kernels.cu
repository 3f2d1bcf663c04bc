// The kernels. Every name is extern "C": it is what launchers and TensorRT look up.
//
// Batches are ragged: sequence b owns rows row_start[b] to row_start[b] + num_rows[b] - 1 of logits, tokens and
// targets; tokens are its last committed token, then its drafts. A sequence of 0 rows accepts nothing and has no next
// token; one of more rows than the grid has is cut to those. Blocks are whole warps. `arrived` [batch] is zero before and after each kernel.
#include "block.cuh"

namespace TL_NAMESPACE {

TL_FN void finish_empty(const Block& g, int* accepted, int* next, unsigned char* failed) {
  if (g.rank() == 0) {
    *accepted = 0;
    *next = -1;
    *failed = 0;
  }
}

// Grid (splits, most rows, batch): each block takes one part of one row; a sequence's last block decides.
// `partial`: u64[rows, splits].
template <class Logit>
TL_FN void accept_greedy(const Logit* logits, i64 row_stride, const int* row_start, const int* num_rows,
                         const int* tokens, int vocab, u64* partial, u32* arrived, int* targets, int* accepted,
                         int* next, unsigned char* failed) {
  __shared__ GroupShared shared;
  __shared__ u32 ticket;
  const Block g;
  const int b = blockIdx.z, r = blockIdx.y, split = blockIdx.x, splits = gridDim.x;
  const int rows = num_rows[b] < static_cast<int>(gridDim.y) ? num_rows[b] : gridDim.y;
  if (r >= rows) {
    if (rows <= 0 && r == 0 && split == 0) finish_empty(g, accepted + b, next + b, failed + b);
    return;
  }
  const i64 start = row_start[b];
  constexpr int kSize = Pack<Logit>::kSize;
  const int span = ((vocab + splits - 1) / splits + kSize - 1) / kSize * kSize;
  const i64 begin = static_cast<i64>(split) * span;
  u64 best = 0;
  if (begin < vocab) {
    const int end = vocab - begin < span ? vocab : static_cast<int>(begin) + span;
    best = best_in_span(g, shared, logits + (start + r) * row_stride, static_cast<int>(begin), end);
  }
  if (g.rank() == 0) partial[(start + r) * splits + split] = best;
  if (!arrive_last(g, arrived + b, static_cast<u32>(rows) * splits, ticket)) return;
  for (int row = g.warp(); row < rows; row += g.warps()) {
    u64 whole = 0;
    for (int i = g.lane(); i < splits; i += 32) {
      const u64 part = partial[(start + row) * splits + i];
      whole = part > whole ? part : whole;
    }
    whole = g.warp_max(whole);
    if (g.lane() == 0) targets[start + row] = is_choosable(whole) ? candidate_token(whole) : -1;
  }
  g.sync();
  finish_sequence(g, shared, tokens + start, rows, targets + start, accepted + b, next + b, failed + b);
}

// Grid (most rows, batch): a block a row. `scratch`: float[rows, vocab], or null if no sequence has logits processing.
template <class Logit>
TL_FN void accept_sampled(const Logit* logits, i64 row_stride, const int* row_start, const int* num_rows,
                          const int* tokens, int vocab, const Sampling* sampling, float* scratch, u32* arrived,
                          int* targets, int* accepted, int* next, unsigned char* failed) {
  __shared__ RowShared shared;
  __shared__ u32 ticket;
  const Block g;
  const int b = blockIdx.y, r = blockIdx.x;
  const int rows = num_rows[b] < static_cast<int>(gridDim.x) ? num_rows[b] : gridDim.x;
  if (r >= rows) {
    if (rows <= 0 && r == 0) finish_empty(g, accepted + b, next + b, failed + b);
    return;
  }
  const i64 start = row_start[b];
  const int target = row_target(g, shared, logits + (start + r) * row_stride, vocab, sampling[b], r, tokens + start,
                                scratch + (start + r) * vocab);
  if (g.rank() == 0) targets[start + r] = target;
  if (!arrive_last(g, arrived + b, static_cast<u32>(rows), ticket)) return;
  finish_sequence(g, shared, tokens + start, rows, targets + start, accepted + b, next + b, failed + b);
}

// The two halves of accept_greedy as TensorRT wants kernels: inputs, scalars, outputs; no workspace. Padded rows.

// Grid (splits, rows of all sequences): logits [batch * rows, vocab] -> candidates u64[batch * rows, splits].
template <class Logit>
TL_FN void row_candidates(const Logit* logits, int vocab, u64* candidates) {
  __shared__ GroupShared shared;
  const Block g;
  const int splits = gridDim.x, split = blockIdx.x;
  constexpr int kSize = Pack<Logit>::kSize;
  const int span = ((vocab + splits - 1) / splits + kSize - 1) / kSize * kSize;
  const i64 begin = static_cast<i64>(split) * span;
  u64 best = 0;
  if (begin < vocab) {
    const int end = vocab - begin < span ? vocab : static_cast<int>(begin) + span;
    best = best_in_span(g, shared, logits + static_cast<i64>(blockIdx.y) * vocab, static_cast<int>(begin), end);
  }
  if (g.rank() == 0) candidates[static_cast<i64>(blockIdx.y) * splits + split] = best;
}

}  // namespace TL_NAMESPACE

using namespace TL_NAMESPACE;

#define TL_KERNELS(suffix, Logit)                                                                                      \
  extern "C" __global__ void tl_accept_greedy_##suffix(                                                                \
      const Logit* logits, i64 row_stride, const int* row_start, const int* num_rows, const int* tokens, int vocab,    \
      u64* partial, u32* arrived, int* targets, int* accepted, int* next, unsigned char* failed) {                     \
    accept_greedy(logits, row_stride, row_start, num_rows, tokens, vocab, partial, arrived, targets, accepted, next,   \
                  failed);                                                                                             \
  }                                                                                                                    \
  extern "C" __global__ void tl_accept_sampled_##suffix(                                                               \
      const Logit* logits, i64 row_stride, const int* row_start, const int* num_rows, const int* tokens, int vocab,    \
      const Sampling* sampling, float* scratch, u32* arrived, int* targets, int* accepted, int* next,                  \
      unsigned char* failed) {                                                                                         \
    accept_sampled(logits, row_stride, row_start, num_rows, tokens, vocab, sampling, scratch, arrived, targets,        \
                   accepted, next, failed);                                                                            \
  }                                                                                                                    \
  extern "C" __global__ void tl_row_candidates_##suffix(const Logit* logits, int vocab, u64* candidates) {             \
    row_candidates(logits, vocab, candidates);                                                                         \
  }

TL_KERNELS(f32, float)
TL_KERNELS(f16, Half)
TL_KERNELS(bf16, Bfloat16)

// Grid (batch): candidates u64[batch, rows, splits], tokens [batch, rows], num_rows [batch] (1 to rows) -> targets
// [batch, rows], accepted [batch], next [batch] (-1: the deciding row has no target).
extern "C" __global__ void tl_accept_candidates(const u64* candidates, const int* tokens, const int* num_rows, int rows,
                                                int splits, int* targets, int* accepted, int* next) {
  __shared__ GroupShared shared;
  __shared__ unsigned char failed;
  const Block g;
  const i64 start = static_cast<i64>(blockIdx.x) * rows;
  int own = num_rows[blockIdx.x];
  own = own < 0 ? 0 : own > rows ? rows : own;
  for (int row = g.warp(); row < rows; row += g.warps()) {
    u64 whole = 0;
    for (int i = g.lane(); i < splits; i += 32) {
      const u64 part = candidates[(start + row) * splits + i];
      whole = part > whole ? part : whole;
    }
    whole = g.warp_max(whole);
    if (g.lane() == 0) targets[start + row] = row < own && is_choosable(whole) ? candidate_token(whole) : -1;
  }
  g.sync();
  if (own == 0) return finish_empty(g, accepted + blockIdx.x, next + blockIdx.x, &failed);
  finish_sequence(g, shared, tokens + start, own, targets + start, accepted + blockIdx.x, next + blockIdx.x, &failed);
}

// Grid (batch), after an accept: appends each sequence's accepted drafts and next token to its history [batch,
// max_len], and counts them where it samples with penalties (`sampling` may be null: all greedy). A sequence that
// failed, or whose history is full, stays as it is.
extern "C" __global__ void tl_commit(const int* row_start, const int* num_rows, const int* targets, const int* accepted,
                                     int* history, int max_len, int* lengths, Sampling* sampling) {
  const Block g;
  const int b = blockIdx.x;
  const int length = lengths[b], added = accepted[b] + 1;
  const int* tokens = targets + row_start[b];
  if (num_rows[b] <= 0 || tokens[added - 1] < 0 || length + added > max_len) return;
  int* end = history + static_cast<i64>(b) * max_len + length;
  for (int j = g.rank(); j < added; j += g.size()) {
    end[j] = tokens[j];
    if (sampling && sampling[b].counts) atomicAdd(const_cast<int*>(sampling[b].counts) + tokens[j], 1);
  }
  g.sync();  // every thread has read the length
  if (g.rank() == 0) {
    lengths[b] = length + added;
    if (sampling) sampling[b].position += added;
  }
}

// Grid (splits, batch): each block looks in one part of a history [batch, max_len]; a sequence's last block writes its
// next rows: rows [batch, max_rows], num_rows [batch], and where the copy starts, or -1: start [batch].
// `allowed` [batch]: most drafts of each sequence, cut to max_rows - 1. 1 <= ngram <= depth <= kMaxDepth, ngram <=
// min_match. `partial`: u64[batch, splits].
extern "C" __global__ void tl_lookup(const int* history, int max_len, const int* lengths, const int* allowed, int ngram,
                                     int min_match, int depth, int max_rows, u64* partial, u32* arrived, int* rows,
                                     int* num_rows, int* start) {
  __shared__ GroupShared shared;
  __shared__ u32 ticket;
  const Block g;
  const int b = blockIdx.y, split = blockIdx.x, splits = gridDim.x;
  const int length = lengths[b] < max_len ? lengths[b] : max_len;
  const int* tokens = history + static_cast<i64>(b) * max_len;
  const int span = (length + splits - 1) / splits;
  const i64 begin = static_cast<i64>(split) * span;
  u64 best = 0;
  if (begin < length) {
    const int end = length - begin < span ? length : static_cast<int>(begin) + span;
    best = best_hit(g, shared, tokens, length, static_cast<int>(begin), end, ngram, depth);
  }
  if (g.rank() == 0) partial[static_cast<i64>(b) * splits + split] = best;
  if (!arrive_last(g, arrived + b, splits, ticket)) return;
  if (length <= 0) {
    if (g.rank() == 0) {
      num_rows[b] = 0;
      start[b] = -1;
    }
    return;
  }
  best = 0;
  for (int i = g.rank(); i < splits; i += g.size()) {
    const u64 part = partial[static_cast<i64>(b) * splits + i];
    best = part > best ? part : best;
  }
  best = group_max(g, shared, best);
  const int most = allowed[b] < max_rows - 1 ? allowed[b] : max_rows - 1;
  const int count = write_rows(g, shared, tokens, length, best, min_match, most,
                               rows + static_cast<i64>(b) * max_rows, start + b);
  if (g.rank() == 0) num_rows[b] = count;
}
