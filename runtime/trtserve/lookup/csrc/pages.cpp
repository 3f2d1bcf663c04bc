#include "pages.h"

#include <cstdint>
#include <new>

#include <sys/mman.h>
#include <unistd.h>

namespace trtlookup {

namespace {

// Small pages are sooner had all at once than one by one.
#ifdef MAP_POPULATE
constexpr int kAtOnce = MAP_POPULATE;
#else
constexpr int kAtOnce = 0;
#endif

void* mapped(std::size_t bytes, int flags = 0) {
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return memory;
}

}  // namespace

// A large page lies at a multiple of its size: so much address space more is asked for, and what is around given back.
void* zeroed_pages(std::size_t bytes) {
    if (bytes < kLargePage) return mapped(bytes, kAtOnce);
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    if (bytes > SIZE_MAX - kLargePage - page) throw std::bad_alloc();
    const std::size_t whole = (bytes + page - 1) / page * page;
    auto* const begin = static_cast<char*>(mapped(whole + kLargePage));
    const std::size_t before = (kLargePage - reinterpret_cast<std::uintptr_t>(begin) % kLargePage) % kLargePage;
    if (before > 0) munmap(begin, before);
    munmap(begin + before + whole, kLargePage - before);
#ifdef MADV_HUGEPAGE
    madvise(begin + before, whole, MADV_HUGEPAGE);  // where it is refused, pages are small
#endif
    return begin + before;
}

void free_pages(void* memory, std::size_t bytes) noexcept { munmap(memory, bytes); }

}  // namespace trtlookup
