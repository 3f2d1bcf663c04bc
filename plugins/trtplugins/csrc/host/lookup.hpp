// Copy lookup on the host.
#pragma once

namespace trtlookup_host {

// One sequence of tl_lookup (kernels.cu): writes rows[max_rows] and *start, returns the number of rows.
int lookup(const int* history, int length, int allowed, int ngram, int min_match, int depth, int max_rows, int* rows,
           int* start);

}  // namespace trtlookup_host
