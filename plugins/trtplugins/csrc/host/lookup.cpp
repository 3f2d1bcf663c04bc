#include "lookup.hpp"

#define TL_NAMESPACE trtlookup_lookup
#include "../lookup.cuh"
#include "host_thread.hpp"

int trtlookup_host::lookup(const int* history, int length, int allowed, int ngram, int min_match, int depth,
                           int max_rows, int* rows, int* start) {
  using namespace trtlookup_lookup;
  *start = -1;
  if (length <= 0) return 0;
  GroupShared shared;
  const HostThread g;
  const u64 hit = best_hit(g, shared, history, length, 0, length, ngram, depth);
  const int most = allowed < max_rows - 1 ? allowed : max_rows - 1;
  return write_rows(g, shared, history, length, hit, min_match, most, rows, start);
}
