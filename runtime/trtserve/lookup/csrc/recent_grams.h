// Where the last one, two or three tokens occurred latest, and how well that told what follows: the short contexts that an
// n-gram index has no keys for.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "hashing.h"

namespace trtlookup {

// Of a context: the position after its latest occurrence, 0 when there is none, and how often the same token followed it as
// the time before, and how often another.
struct RecentGram {
    std::size_t position = 0;
    unsigned same = 0, other = 0;
};

// Both counts, four bits each, after an outcome: by whether it was the same, and the counts before. A count that is not
// confirmed fades.
inline constexpr auto kFollowed = [] {
    const auto confirmed = [](unsigned count) { return count < 15 ? count + 1 : 15; };
    const auto faded = [](unsigned count) { return count > 2 ? (count + 2) / 2 : count; };
    std::array<std::array<std::uint8_t, 256>, 2> followed{};
    for (unsigned counts = 0; counts < 256; ++counts) {
        const unsigned same = counts >> 4, other = counts & 15;
        followed[0][counts] = static_cast<std::uint8_t>(faded(same) << 4 | confirmed(other));
        followed[1][counts] = static_cast<std::uint8_t>(confirmed(same) << 4 | faded(other));
    }
    return followed;
}();

// A direct-mapped table of positions, as many places as tokens up to kMostPlaces: a short match is worth something when
// it is near, so the newest gram may take any other's place. With each gram goes how often the same token followed it as
// the time before, and how often another, later outcomes counting more.
template <std::size_t kOrder>
class RecentGrams {
  public:
    static constexpr std::size_t kLeastPlaces = 64;
    static constexpr std::size_t kMostPlaces = std::size_t{1} << 13;
    static constexpr std::size_t kReach = 4 * kMostPlaces;  // of a longer text only the last tokens are entered

    // Enters every gram within reach that ends before `size` - 1 and was not entered yet, so that a token follows each.
    void extend(const Token* tokens, std::size_t size) {
        if (size > places_.size() && places_.size() < kMostPlaces) {
            std::size_t places = kLeastPlaces;
            while (places < size && places < kMostPlaces) places *= 2;
            places_.assign(places, 0);
            bits_ = 0;
            while (std::size_t{1} << bits_ < places) ++bits_;
            next_ = kOrder;
        }
        if (size > kReach) next_ = std::max(next_, size - kReach);
        for (; next_ < size; ++next_) enter(tokens);
    }

    // The tokens from `size` on are gone. What was entered after them stays until it is overwritten.
    void truncate(std::size_t size) noexcept { next_ = std::max(kOrder, std::min(next_, size)); }

    // The latest occurrence, in a text of `size` tokens, of the `available` or fewer tokens before `end`.
    RecentGram latest(const Token* tokens, std::size_t size, const Token* end, std::size_t available) const noexcept {
        if (places_.empty() || available < kOrder) return {};
        const std::uint32_t entry = places_[place(end)];
        const std::size_t position = entry >> 8;
        if (position == 0 || position >= size || !equal(end, tokens + position)) return {};
        return {position, entry >> 4 & 0xf, entry & 0xf};
    }

    static constexpr int order() noexcept { return static_cast<int>(kOrder); }
    std::size_t bytes() const noexcept { return places_.capacity() * sizeof(std::uint32_t); }

  private:
    // Without a branch: which way it goes is as hard to tell as the text.
    void enter(const Token* tokens) noexcept {
        std::uint32_t& entry = places_[place(tokens + next_)];
        const std::size_t before = entry >> 8;
        const bool known = before != 0 && before < next_;
        const std::size_t other = known ? before : kOrder;
        const bool again = known & equal(tokens + next_, tokens + other);
        const std::uint32_t counts = kFollowed[tokens[other] == tokens[next_]][entry & 0xff];
        entry = static_cast<std::uint32_t>(next_ << 8) | (again ? counts : 0);
    }

    // Whether the grams before both are the same.
    static bool equal(const Token* one, const Token* other) noexcept {
        bool equal = true;
        for (std::size_t back = kOrder; back > 0; --back) equal &= *(one - back) == *(other - back);
        return equal;
    }

    std::size_t place(const Token* end) const noexcept {
        std::uint64_t hash = 0;
        for (std::size_t back = kOrder; back > 0; --back)
            hash = (hash + static_cast<std::uint64_t>(*(end - back)) + 1) * kFixedMultiplier;
        return static_cast<std::size_t>(hash >> (64 - bits_));
    }

    std::size_t next_ = 0;
    int bits_ = 0;
    std::vector<std::uint32_t> places_;  // 24 bits of position, 4 of `same`, 4 of `other`
};

}  // namespace trtlookup
