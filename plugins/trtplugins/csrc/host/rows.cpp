// Compiled once per instruction set (TL_ISA names it). Includes nothing of the standard library: an inline function
// compiled here for AVX-512 must never be the copy that the rest of the program links to.
#define TL_JOIN_(a, b) a##b
#define TL_JOIN(a, b) TL_JOIN_(a, b)
#define TL_NAMESPACE TL_JOIN(trtlookup_, TL_ISA)
#include "../rows.cuh"
#include "host_thread.hpp"
#include "rows.hpp"

namespace TL_NAMESPACE {

using trtlookup_host::Format;
using trtlookup_host::Scratch;

// The same result as best_candidate() and is_choosable(), in a form compilers turn into vector code: blocks of
// tokens, each reduced in kLanes independent lanes; then the first token of the first block with the highest logit.
constexpr int kLanes = 64;
constexpr int kBlock = 32 * kLanes;

template <class Logit>
static int highest_token(const Logit* logits, int vocab, float* highest_out) {
  float highest = minus_infinity();
  int first_block = -1;
  unsigned nan = 0;
  for (int begin = 0; begin < vocab; begin += kBlock) {
    float lanes[kLanes];
    unsigned nans[kLanes];
    for (int j = 0; j < kLanes; ++j) {
      lanes[j] = minus_infinity();
      nans[j] = 0;
    }
    const int length = vocab - begin < kBlock ? vocab - begin : kBlock;
    const Logit* block = logits + begin;
    int t = 0;
    for (; t + kLanes <= length; t += kLanes) {
      for (int j = 0; j < kLanes; ++j) {
        const float x = to_float(block[t + j]);
        lanes[j] = x > lanes[j] ? x : lanes[j];
        nans[j] |= x != x ? 0xffffffffu : 0u;
      }
    }
    for (; t < length; ++t) {
      const float x = to_float(block[t]);
      lanes[0] = x > lanes[0] ? x : lanes[0];
      nans[0] |= x != x ? 0xffffffffu : 0u;
    }
    float block_highest = lanes[0];
    for (int j = 0; j < kLanes; ++j) {
      block_highest = lanes[j] > block_highest ? lanes[j] : block_highest;
      nan |= nans[j];
    }
    if (block_highest > highest) {
      highest = block_highest;
      first_block = begin;
    }
  }
  if (nan || first_block < 0) return -1;
  *highest_out = highest;
  int token = first_block;
  while (!(to_float(logits[token]) == highest)) ++token;
  return token;
}

// LogitRow with each key and weight computed once, in vector code.
struct StoredRow {
  const u32* keys;
  const u64* weights;
  u32 key(int t) const { return keys[t]; }
  u64 weight(int t) const { return weights[t]; }
};

template <class Logit>
static int sample(const Logit* logits, int vocab, const Sampling& s, int row, const Scratch& scratch) {
  float highest = 0;
  const int best = highest_token(logits, vocab, &highest);
  if (best < 0 || s.temperature == 0.0f) return best;
  u32* keys = scratch.keys;
  u64* weights = scratch.weights;
  const float temperature = s.temperature;
  for (int t = 0; t < vocab; ++t) {
    const float x = to_float(logits[t]);
    keys[t] = key_of(x);
    weights[t] = weight_at(x, highest, temperature);
  }
  const u64 random = random_bits(s.seed, static_cast<u64>(s.position + row));
  return sample_row(HostThread{}, *static_cast<RowShared*>(scratch.shared), StoredRow{keys, weights}, vocab, s, random);
}

template <class Logit>
static int target(const Logit* logits, int vocab, const Sampling& s, int row, const int* tokens,
                  const Scratch& scratch) {
  if (!has_processing(s, row)) return sample(logits, vocab, s, row, scratch);
  process_row(HostThread{}, logits, vocab, s, row, tokens, scratch.logits);
  return sample(scratch.logits, vocab, s, row, scratch);
}

static int greedy_any(const void* logits, Format format, int vocab) {
  float highest;
  switch (format) {
    case Format::float16: return highest_token(static_cast<const Half*>(logits), vocab, &highest);
    case Format::bfloat16: return highest_token(static_cast<const Bfloat16*>(logits), vocab, &highest);
    default: return highest_token(static_cast<const float*>(logits), vocab, &highest);
  }
}

static int target_any(const void* logits, Format format, int vocab, const void* sampling, int row, const int* tokens,
                      const Scratch& scratch) {
  const Sampling& s = *static_cast<const Sampling*>(sampling);
  switch (format) {
    case Format::float16: return target(static_cast<const Half*>(logits), vocab, s, row, tokens, scratch);
    case Format::bfloat16: return target(static_cast<const Bfloat16*>(logits), vocab, s, row, tokens, scratch);
    default: return target(static_cast<const float*>(logits), vocab, s, row, tokens, scratch);
  }
}

}  // namespace TL_NAMESPACE

#define TL_TEXT_(x) #x
#define TL_TEXT(x) TL_TEXT_(x)

const trtlookup_host::Rows& trtlookup_host::TL_JOIN(TL_ISA, _rows)() {
  static constexpr Rows rows{TL_TEXT(TL_ISA), sizeof(TL_NAMESPACE::RowShared), TL_NAMESPACE::greedy_any,
                             TL_NAMESPACE::target_any};
  return rows;
}
