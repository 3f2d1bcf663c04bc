// Where the last one, two or three tokens occurred latest, and how well that told what follows: the short contexts that an
// n-gram index has no keys for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "hashing.h"

namespace trtlookup {

// A direct-mapped table of positions, as many places as tokens up to kMostPlaces: a short match is worth something when
// it is near, so the newest gram may take any other's place. With each gram goes how often the same token followed it as
// the time before, and how often another, later outcomes counting more.
class RecentGrams {
  public:
    static constexpr std::size_t kLeastPlaces = 64;
    static constexpr std::size_t kMostPlaces = std::size_t{1} << 13;
    static constexpr std::size_t kReach = 4 * kMostPlaces;  // of a longer text only the last tokens are entered
    static constexpr unsigned kMostCount = 15;

    // `position` is the one after the latest occurrence; 0 when there is none.
    struct Gram {
        std::size_t position = 0;
        unsigned same = 0, other = 0;
    };

    explicit RecentGrams(int order) noexcept : order_(static_cast<std::size_t>(order)) {}

    // Enters every gram within reach that ends before `size` - 1 and was not entered yet, so that a token follows each.
    void extend(const Token* tokens, std::size_t size) {
        if (size > places_.size() && places_.size() < kMostPlaces) {
            std::size_t places = kLeastPlaces;
            while (places < size && places < kMostPlaces) places *= 2;
            places_.assign(places, 0);
            bits_ = 0;
            while (std::size_t{1} << bits_ < places) ++bits_;
            next_ = order_;
        }
        if (size > kReach) next_ = std::max(next_, size - kReach);
        for (; next_ < size; ++next_) enter(tokens);
    }

    // The tokens from `size` on are gone. What was entered after them stays until it is overwritten.
    void truncate(std::size_t size) noexcept { next_ = std::max(order_, std::min(next_, size)); }

    // The latest occurrence, in a text of `size` tokens, of the `available` or fewer tokens before `end`.
    Gram latest(const Token* tokens, std::size_t size, const Token* end, std::size_t available) const noexcept {
        if (places_.empty() || available < order_) return {};
        const std::uint32_t entry = places_[place(end)];
        const std::size_t position = entry >> 8;
        if (position == 0 || position >= size || !equal(end, tokens + position)) return {};
        return {position, entry >> 4 & kMostCount, entry & kMostCount};
    }

    int order() const noexcept { return static_cast<int>(order_); }
    std::size_t bytes() const noexcept { return places_.capacity() * sizeof(std::uint32_t); }

  private:
    void enter(const Token* tokens) noexcept {
        std::uint32_t& entry = places_[place(tokens + next_)];
        const std::size_t before = entry >> 8;
        std::uint32_t same = entry >> 4 & kMostCount, other = entry & kMostCount;
        if (before == 0 || before >= next_ || !equal(tokens + next_, tokens + before)) {
            same = other = 0;
        } else if (tokens[before] == tokens[next_]) {
            count(same, other);
        } else {
            count(other, same);
        }
        entry = static_cast<std::uint32_t>(next_ << 8) | same << 4 | other;
    }

    // Whether the grams before both are the same. A loop, for they are shorter than a call of memcmp.
    bool equal(const Token* one, const Token* other) const noexcept {
        for (std::size_t back = order_; back > 0; --back)
            if (*(one - back) != *(other - back)) return false;
        return true;
    }

    static void count(std::uint32_t& seen, std::uint32_t& unseen) noexcept {
        seen = std::min(seen + 1, kMostCount);
        if (unseen > 2) unseen = (unseen + 2) / 2;
    }

    std::size_t place(const Token* end) const noexcept {
        std::uint64_t hash = 0;
        for (std::size_t back = order_; back > 0; --back)
            hash = (hash + static_cast<std::uint64_t>(*(end - back)) + 1) * kFixedMultiplier;
        return static_cast<std::size_t>(hash >> (64 - bits_));
    }

    std::size_t order_;
    std::size_t next_ = 0;
    int bits_ = 0;
    std::vector<std::uint32_t> places_;  // 24 bits of position, 4 of `same`, 4 of `other`
};

}  // namespace trtlookup
