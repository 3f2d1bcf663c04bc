// Where the last one, two or three tokens occurred latest, and how well that told what follows: the short contexts that an
// n-gram index has no keys for.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "compare.h"
#include "hashing.h"

namespace trtlookup {

// Of a context: the position after its latest occurrence, 0 when there is none, the token there, and how often the same
// token followed as the time before and how often another, four bits each.
struct RecentGram {
    std::size_t position = 0;
    Token follows = -1;
    unsigned counts = 0;
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

// Direct-mapped tables of positions, one for each order, as many places as tokens up to kMostPlaces: a short match is worth
// something when it is near, so the newest gram may take any other's place. With each gram goes how often the same token
// followed it as the time before, and how often another, later outcomes counting more.
//
// All without branches: which way they go would be as hard to tell as the text.
class RecentGrams {
  public:
    static constexpr std::size_t kOrders = 3;
    static constexpr std::size_t kBefore = 4;  // tokens that are compared at once: grams within them are not known
    static constexpr std::size_t kLeastPlaces = 64;
    static constexpr std::size_t kMostPlaces = std::size_t{1} << 13;
    static constexpr std::size_t kReach = 4 * kMostPlaces;  // of a longer text only the last tokens are entered
    using Grams = std::array<RecentGram, kOrders>;          // the longest first

    // Grams of one to `orders` tokens.
    explicit RecentGrams(int orders) noexcept : orders_(std::min(static_cast<std::size_t>(orders), kOrders)) {}

    // The end of a text of kBefore tokens or more, which goes on token by token.
    class Tail {
      public:
        explicit Tail(const Token* end) noexcept : last_(end - kBefore) {
            for (std::size_t back = kOrders; back > 0; --back) hash(*(end - back));
        }

        void push(Token token) noexcept {
            last_.push(token);
            hash(token);
        }

      private:
        friend RecentGrams;

        void hash(Token token) noexcept {
            const std::uint64_t value = static_cast<std::uint64_t>(token) + 1;
            for (std::size_t order = kOrders - 1; order > 0; --order) hashes_[order] = (hashes_[order - 1] + value) * kFixedMultiplier;
            hashes_[0] = value * kFixedMultiplier;
        }

        // Whether the last kOrder tokens are those before `end`.
        template <std::size_t kOrder>
        bool before(const Token* end) const noexcept {
            constexpr unsigned kThose = 0xf << (kBefore - kOrder) & 0xf;
            return (last_.equal(end - kBefore) & kThose) == kThose;
        }

        Four last_;
        std::array<std::uint64_t, kOrders> hashes_{};  // of the last one, two and three
    };

    // Enters every gram within reach that ends before `size` - 1 and was not entered yet, so that a token follows each.
    void extend(const Token* tokens, std::size_t size) {
        if (orders_ == 0) return;
        if (size > count_ && count_ < kMostPlaces) grow(size);
        if (size > kReach) next_ = std::max(next_, size - kReach);
        if (next_ >= size) return;
        Tail tail(tokens + next_);
        for (; next_ < size; ++next_) {
            if (orders_ >= 3) enter<3>(tail, tokens);
            if (orders_ >= 2) enter<2>(tail, tokens);
            enter<1>(tail, tokens);
            tail.push(tokens[next_]);
        }
    }

    // The tokens from `size` on are gone. What was entered after them stays until it is overwritten.
    void truncate(std::size_t size) noexcept { next_ = std::max(kBefore, std::min(next_, size)); }

    // Where the last tokens of `tail` occurred latest in a text of `size` tokens.
    Grams latest(const Tail& tail, const Token* tokens, std::size_t size) const noexcept {
        if (orders_ == 0 || size <= kBefore) return {};
        return {orders_ >= 3 ? latest<3>(tail, tokens, size) : RecentGram{}, orders_ >= 2 ? latest<2>(tail, tokens, size) : RecentGram{},
                latest<1>(tail, tokens, size)};
    }

    std::size_t bytes() const noexcept { return places_.capacity() * sizeof(std::uint32_t); }

  private:
    void grow(std::size_t size) {
        count_ = kLeastPlaces;
        while (count_ < size && count_ < kMostPlaces) count_ *= 2;
        shift_ = 64 - std::countr_zero(count_);
        places_.assign(orders_ * count_, 0);
        next_ = kBefore;
    }

    template <std::size_t kOrder>
    std::size_t place(const Tail& tail) const noexcept {
        return (kOrder - 1) * count_ + static_cast<std::size_t>(tail.hashes_[kOrder - 1] >> shift_);
    }

    // What an entry says of the last tokens of `tail`: all bits, and its position, if it is theirs and before `size`; else
    // none, and some position.
    struct Known {
        std::uint32_t mask;
        std::uint32_t position;
    };

    template <std::size_t kOrder>
    static Known known(const Tail& tail, std::uint32_t entry, const Token* tokens, std::size_t size) noexcept {
        constexpr auto kFirst = static_cast<std::uint32_t>(kBefore);
        const std::uint32_t after = (entry >> 8) - kFirst;  // of an empty place more than any
        const std::uint32_t within = -static_cast<std::uint32_t>(after < static_cast<std::uint32_t>(size) - kFirst);
        const std::uint32_t position = kFirst + (after & within);
        return {within & -static_cast<std::uint32_t>(tail.before<kOrder>(tokens + position)), position};
    }

    template <std::size_t kOrder>
    RecentGram latest(const Tail& tail, const Token* tokens, std::size_t size) const noexcept {
        const std::uint32_t entry = places_[place<kOrder>(tail)];
        const Known known = this->known<kOrder>(tail, entry, tokens, size);
        return {known.position & known.mask, tokens[known.position] | static_cast<Token>(~known.mask), entry & 0xff & known.mask};
    }

    // The gram before position next_.
    template <std::size_t kOrder>
    void enter(const Tail& tail, const Token* tokens) noexcept {
        std::uint32_t& entry = places_[place<kOrder>(tail)];
        const Known known = this->known<kOrder>(tail, entry, tokens, next_);
        const std::uint32_t counts = kFollowed[tokens[known.position] == tokens[next_]][entry & 0xff];
        entry = static_cast<std::uint32_t>(next_ << 8) | (counts & known.mask);
    }

    std::size_t orders_;
    std::size_t count_ = 0;  // places of each order
    int shift_ = 0;          // of a hash, to one of them
    std::size_t next_ = kBefore;
    std::vector<std::uint32_t> places_;  // 24 bits of position, 4 of `same`, 4 of `other`
};

}  // namespace trtlookup
