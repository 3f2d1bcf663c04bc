// Memory straight from the system: zeroed, given back at once when freed, and in large pages where there are some.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace trtlookup {

// A large page; from as many bytes on memory lies in them.
inline constexpr std::size_t kLargePage = std::size_t{2} << 20;

// At least `bytes` zeroed bytes, at a multiple of 64 at least. Throws std::bad_alloc.
void* zeroed_pages(std::size_t bytes);

void free_pages(void* memory, std::size_t bytes) noexcept;

// A vector's memory, in large pages where it fills some: a processor remembers where a few megabytes of small pages lie, and
// reading here and there in more of them waits for that too.
template <typename T>
struct PageAllocator {
    using value_type = T;

    PageAllocator() = default;
    template <typename Other>
    PageAllocator(const PageAllocator<Other>&) noexcept {}

    T* allocate(std::size_t count) {
        if (count < kLargePage / sizeof(T)) return std::allocator<T>().allocate(count);
        if (count > SIZE_MAX / sizeof(T)) throw std::bad_array_new_length();
        return static_cast<T*>(zeroed_pages(count * sizeof(T)));
    }

    void deallocate(T* memory, std::size_t count) noexcept {
        if (count < kLargePage / sizeof(T)) return std::allocator<T>().deallocate(memory, count);
        free_pages(memory, count * sizeof(T));
    }

    template <typename Other>
    bool operator==(const PageAllocator<Other>&) const noexcept {
        return true;
    }
};

template <typename T>
using PagedVector = std::vector<T, PageAllocator<T>>;

}  // namespace trtlookup
