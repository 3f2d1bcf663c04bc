// Accept over a packed batch on host threads.
#pragma once
#include <cstddef>

#include "rows.hpp"

namespace trtlookup_host {

struct AcceptBatch {
  const void* logits;  // [rows, vocab], rows row_stride elements apart
  Format format;
  std::ptrdiff_t row_stride;
  int vocab;
  int batch;
  const int* row_start;  // [batch]
  const int* num_rows;   // [batch]
  const int* tokens;     // [rows]
  const void* sampling;  // [batch] Sampling, or null: greedy on raw logits
  int* targets;          // [rows] out, preset to -1
  int* accepted;         // [batch] out
  int* next;             // [batch] out
  bool* failed;          // [batch] out
};

// Throws std::bad_alloc. `rows`: which copy of the rule.
void accept(const Rows& rows, const AcceptBatch& batch, int threads);

}  // namespace trtlookup_host
