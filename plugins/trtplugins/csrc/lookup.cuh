// Copy lookup in one history, for any group of threads (see rows.cuh).
//
// The last tokens of a history are its tail. A hit is a position p below the history's length such that the `ngram`
// tokens before p equal the tail's; its match is how many tokens before p, counted back up to `depth`, equal the
// tail's. The best hit is the one of the longest match, the latest of equals: with depth = ngram that is the latest
// occurrence of the n-gram, with a greater depth the longest match.
#pragma once
#include "rows.cuh"

namespace TL_NAMESPACE {

constexpr int kMaxDepth = 256;

TL_FN int match_before(const int* history, int length, int position, int depth) {
  int match = 0;
  while (match < depth && match < position && history[position - 1 - match] == history[length - 1 - match]) ++match;
  return match;
}

// The best hit at positions begin to end - 1 as (match << 32 | position); 0 if there is none. end <= length.
template <class G>
TL_FN u64 best_hit(const G& g, GroupShared& shared, const int* history, int length, int begin, int end, int ngram,
                   int depth) {
  u64 best = 0;
  for (int p = begin + g.rank(); p < end; p += g.size()) {
    const int match = match_before(history, length, p, depth);
    const u64 hit = (static_cast<u64>(match) << 32) | static_cast<u32>(p);
    if (match >= ngram && hit > best) best = hit;
  }
  return group_max(g, shared, best);
}

// Writes a sequence's next rows: its last token, then what followed the best hit, if the hit's match reaches
// min_match: up to `allowed` tokens, never past the history's end. Returns the number of rows.
template <class G>
TL_FN int write_rows(const G& g, GroupShared& shared, const int* history, int length, u64 hit, int min_match, int allowed,
                     int* rows, int* start) {
  const int position = static_cast<int>(static_cast<u32>(hit));
  u64 equal = 0;
  if (hit) {
    for (int j = g.rank(); j < min_match; j += g.size()) {
      equal += j < position && history[position - 1 - j] == history[length - 1 - j];
    }
  }
  const bool found = group_sum(g, shared, equal) == static_cast<u64>(min_match);
  int drafts = 0;
  if (found) drafts = length - position < allowed ? length - position : allowed;
  if (drafts < 0) drafts = 0;
  for (int j = g.rank(); j <= drafts; j += g.size()) rows[j] = j == 0 ? history[length - 1] : history[position + j - 1];
  if (g.rank() == 0) *start = drafts > 0 ? position : -1;
  return drafts + 1;
}

}  // namespace TL_NAMESPACE
