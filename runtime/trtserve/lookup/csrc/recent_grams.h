// Where the last one or two tokens occurred latest: the short matches that an n-gram index has no keys for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "hashing.h"

namespace trtlookup {

// A direct-mapped table of positions, as many places as tokens up to kMostPlaces: a short match is worth something when
// it is near, so the newest gram may take any other's place. The caller compares tokens before it uses a position.
class RecentGrams {
  public:
    static constexpr std::size_t kLeastPlaces = 64;
    static constexpr std::size_t kMostPlaces = std::size_t{1} << 13;

    explicit RecentGrams(int order) noexcept : order_(static_cast<std::size_t>(order)) {}

    // Enters every gram that ends before `size` - 1 and was not entered yet, so that a token follows each.
    void extend(const Token* tokens, std::size_t size) {
        if (size > places_.size() && places_.size() < kMostPlaces) {
            std::size_t places = kLeastPlaces;
            while (places < size && places < kMostPlaces) places *= 2;
            places_.assign(places, 0);
            bits_ = 0;
            while (std::size_t{1} << bits_ < places) ++bits_;
            next_ = order_;
        }
        for (; next_ < size; ++next_) places_[place(tokens + next_)] = static_cast<std::uint32_t>(next_);
    }

    // The tokens from `size` on are gone. What was entered after them stays until it is overwritten.
    void truncate(std::size_t size) noexcept { next_ = std::max(order_, std::min(next_, size)); }

    // The position after the latest gram that may equal the one before `end`; 0 when there is none.
    std::size_t latest(const Token* end) const noexcept { return places_.empty() ? 0 : places_[place(end)]; }

    int order() const noexcept { return static_cast<int>(order_); }
    std::size_t bytes() const noexcept { return places_.capacity() * sizeof(std::uint32_t); }

  private:
    std::size_t place(const Token* end) const noexcept {
        std::uint64_t hash = 0;
        for (std::size_t back = order_; back > 0; --back)
            hash = (hash + static_cast<std::uint64_t>(*(end - back)) + 1) * kFixedMultiplier;
        return static_cast<std::size_t>(hash >> (64 - bits_));
    }

    std::size_t order_;
    std::size_t next_ = 0;
    int bits_ = 0;
    std::vector<std::uint32_t> places_;
};

}  // namespace trtlookup
