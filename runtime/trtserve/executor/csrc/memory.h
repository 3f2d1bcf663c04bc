// Zeroed memory straight from the kernel: pages that are never touched cost nothing.
#pragma once
#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

namespace trtlookup::cpu {

class Pages {
 public:
  Pages() = default;
  // huge: ask for huge pages, for memory that will be used whole. Throws std::bad_alloc.
  Pages(std::int64_t bytes, bool huge) : size_(bytes) {
    if (bytes == 0) return;
    void* p = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<char*>(p);
    if (huge) madvise(p, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  }
  ~Pages() {
    if (data_) munmap(data_, static_cast<std::size_t>(size_));
  }
  Pages(Pages&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  char* data() const { return data_; }
  std::int64_t size() const { return size_; }

 private:
  char* data_ = nullptr;
  std::int64_t size_ = 0;
};

// Hands out aligned pieces of a range; with no base it only measures.
class Carver {
 public:
  explicit Carver(char* base) : base_(base) {}
  template <class T>
  T* take(std::int64_t count) {
    T* p = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (count * static_cast<std::int64_t>(sizeof(T)) + 63) / 64 * 64;
    return p;
  }
  std::int64_t used() const { return used_; }

 private:
  char* base_;
  std::int64_t used_ = 0;
};

}  // namespace trtlookup::cpu
