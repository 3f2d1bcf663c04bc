// Memory straight from the system: zeroed, given back at once when freed, and in large pages where there are some.
#pragma once

#include <cstddef>

namespace trtlookup {

// At least `bytes` zeroed bytes, at a multiple of 64 at least. Throws std::bad_alloc.
void* zeroed_pages(std::size_t bytes);

void free_pages(void* memory, std::size_t bytes) noexcept;

}  // namespace trtlookup
