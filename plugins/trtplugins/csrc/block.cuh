// A CUDA block as a group (see rows.cuh). Blocks are whole warps, at most 32 of them.
#pragma once
#include "lookup.cuh"

namespace TL_NAMESPACE {

constexpr u32 kAllLanes = 0xffffffffu;

struct Block {
  TL_FN int rank() const { return threadIdx.x; }
  TL_FN int size() const { return blockDim.x; }
  TL_FN int warp() const { return threadIdx.x >> 5; }
  TL_FN int warps() const { return blockDim.x >> 5; }
  TL_FN int lane() const { return threadIdx.x & 31; }
  TL_FN int lanes() const { return 32; }
  TL_FN void sync() const { __syncthreads(); }
  TL_FN u64 warp_max(u64 v) const {
    for (int offset = 16; offset > 0; offset >>= 1) {
      const u64 other = __shfl_xor_sync(kAllLanes, v, offset);
      v = other > v ? other : v;
    }
    return v;
  }
  TL_FN u64 warp_sum(u64 v) const {
    for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(kAllLanes, v, offset);
    return v;
  }
  // Inclusive prefix sum over lanes.
  TL_FN u64 warp_scan(u64 v) const {
    for (int offset = 1; offset < 32; offset <<= 1) {
      const u64 below = __shfl_up_sync(kAllLanes, v, offset);
      if (lane() >= offset) v += below;
    }
    return v;
  }
  TL_FN u64 last_lane(u64 v) const { return __shfl_sync(kAllLanes, v, 31); }
  TL_FN void add(u64* counter, u64 v) const { atomicAdd(counter, v); }
};

// Whether this block is the last of `blocks` to arrive at `counter`: everything the others wrote before arriving is
// then visible to it. The counter is 0 before the kernel and 0 after it, so it is cleared once in its life.
TL_FN bool arrive_last(const Block& g, u32* counter, u32 blocks, u32& ticket) {
  __threadfence();
  g.sync();  // every thread's writes are fenced before the block arrives
  if (g.rank() == 0) ticket = atomicAdd(counter, 1u);
  g.sync();
  if (ticket != blocks - 1) return false;
  if (g.rank() == 0) *counter = 0;
  __threadfence();
  return true;
}

// Logits read 16 bytes at a time.
template <class Logit>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(Logit);
  Logit logits[kSize];
};

// best_candidate() over tokens begin to end - 1. `begin` is a multiple of Pack::kSize; whether the row starts at a
// multiple of 16 bytes decides how it is read, not what is found.
template <class Logit>
TL_FN u64 best_in_span(const Block& g, GroupShared& shared, const Logit* logits, int begin, int end) {
  constexpr int kSize = Pack<Logit>::kSize;
  Best best;
  int t = begin;
  if (reinterpret_cast<u64>(logits) % 16 == 0) {
    const int packs = (end - begin) / kSize;
    const Pack<Logit>* source = reinterpret_cast<const Pack<Logit>*>(logits + begin);
#pragma unroll 4
    for (int i = g.rank(); i < packs; i += g.size()) {
      const Pack<Logit> pack = source[i];
#pragma unroll
      for (int j = 0; j < kSize; ++j) best.see(to_float(pack.logits[j]), begin + i * kSize + j);
    }
    t = begin + packs * kSize;
  }
  for (t += g.rank(); t < end; t += g.size()) best.see(to_float(logits[t]), t);
  return group_max(g, shared, best.as_candidate());
}

// Given every row's target of one sequence: which row decides, and what that accepts. Rows after it get -1.
TL_FN void finish_sequence(const Block& g, GroupShared& shared, const int* tokens, int rows, int* targets, int* accepted,
                           int* next, unsigned char* failed) {
  u64 first = 0;  // the lowest deciding row, as a maximum
  for (int r = g.rank(); r < rows; r += g.size()) {
    const bool decides = r + 1 == rows || targets[r] < 0 || targets[r] != tokens[r + 1];
    if (decides && first == 0) first = static_cast<u64>(rows - r);
  }
  const int last = rows - static_cast<int>(group_max(g, shared, first));
  for (int r = g.rank(); r < rows; r += g.size()) {
    if (r == last) {
      *accepted = last;
      *next = targets[r];
      *failed = targets[r] < 0;
    } else if (r > last) {
      targets[r] = -1;
    }
  }
}

}  // namespace TL_NAMESPACE
