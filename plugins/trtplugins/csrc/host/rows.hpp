// The rule of rows.cuh for one host thread, compiled once per instruction set; pick_rows() says which copy runs here.
#pragma once

namespace trtlookup_host {

enum class Format : int { float32 = 0, float16 = 1, bfloat16 = 2 };

// What a thread needs while it works: grown by whoever owns it, for `vocab` tokens.
struct Scratch {
  float* logits;                // [vocab] processed logits
  unsigned long long* weights;  // [vocab]
  unsigned* keys;               // [vocab]
  void* shared;                 // row_shared_bytes
};

struct Rows {
  const char* name;
  unsigned row_shared_bytes;
  // The highest logit's token, the lowest on a tie; -1 if the row has a NaN or nothing above -inf.
  int (*greedy)(const void* logits, Format format, int vocab);
  // row_target() of rows.cuh; `sampling` is one Sampling.
  int (*target)(const void* logits, Format format, int vocab, const void* sampling, int row, const int* tokens,
                const Scratch& scratch);
};

const Rows& baseline_rows();
const Rows& avx2_rows();
const Rows& avx512_rows();
const Rows& pick_rows();

}  // namespace trtlookup_host
