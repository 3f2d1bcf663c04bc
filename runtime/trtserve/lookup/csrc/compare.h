// Comparisons of several tokens at once, without a branch for each: how texts agree is seldom predictable.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "hashing.h"

#if defined(__SSE2__) || defined(_M_X64)
#define TRTLOOKUP_SSE2
#include <emmintrin.h>
#endif

namespace trtlookup {

// Bit i: tokens[i] == token, of 16.
inline unsigned equal_to(const Token* tokens, Token token) noexcept {
#ifdef TRTLOOKUP_SSE2
    const __m128i wanted = _mm_set1_epi32(token);
    const auto four = [&](int i) {
        return _mm_cmpeq_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(tokens + 4 * i)), wanted);
    };
    return static_cast<unsigned>(_mm_movemask_epi8(_mm_packs_epi16(_mm_packs_epi32(four(0), four(1)), _mm_packs_epi32(four(2), four(3)))));
#else
    unsigned equal = 0;
    for (int i = 0; i < 16; ++i) equal |= static_cast<unsigned>(tokens[i] == token) << i;
    return equal;
#endif
}

// Of 8 tokens before each of both, how many at their ends are equal.
inline int equal_before(const Token* one, const Token* other) noexcept {
#ifdef TRTLOOKUP_SSE2
    const auto four = [&](int back) {
        return _mm_cmpeq_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(one - back)),
                               _mm_loadu_si128(reinterpret_cast<const __m128i*>(other - back)));
    };
    const auto equal = static_cast<unsigned>(_mm_movemask_epi8(_mm_packs_epi32(four(8), four(4))));
    return std::countl_one(equal << 16) / 2;
#else
    unsigned equal = 0;
    for (int i = 0; i < 8; ++i) equal |= static_cast<unsigned>(*(one - 1 - i) == *(other - 1 - i)) << i;
    return std::countr_one(equal);
#endif
}

// How many tokens before `one` equal those before `other`; both have `available` before them. Counts to `most`.
inline int equal_tail(const Token* one, const Token* other, std::size_t available, int most) noexcept {
    const auto limit = static_cast<int>(std::min(available, static_cast<std::size_t>(most) + 7));
    int count = 0;
    for (; count + 8 <= limit; count += 8) {
        const int equal = equal_before(one - count, other - count);
        if (equal < 8) return std::min(count + equal, most);
    }
    while (count < limit && *(one - 1 - count) == *(other - 1 - count)) ++count;
    return std::min(count, most);
}

// Some of 96 places that follow one another, a bit each.
class Window {
  public:
    static constexpr int kPlaces = 96;

    // The first `count`.
    static Window of(int count) noexcept {
        return count < 64 ? Window{~(~std::uint64_t{0} << count), 0} : Window{~std::uint64_t{0}, (std::uint64_t{1} << (count - 64)) - 1};
    }

    // Leaves those where tokens[i] == token, unless that is none; then nothing changes. All kPlaces tokens are read.
    bool narrow(const Token* tokens, Token token) noexcept {
        const std::uint64_t low = low_ == 0 ? 0 : low_ & (half(tokens, token) | half(tokens + 32, token) << 32);
        const std::uint64_t high = high_ == 0 ? 0 : high_ & half(tokens + 64, token);
        if ((low | high) == 0) return false;
        low_ = low;
        high_ = high;
        return true;
    }

    // The one nearest to `place`, which is less than 63 and may be negative; the lower of two. There is one.
    int nearest(int place) const noexcept {
        const std::uint64_t not_after = place < 0 ? 0 : low_ & ~(~std::uint64_t{1} << place), after = low_ ^ not_after;
        const int below = 63 - std::countl_zero(not_after);
        const int above = after != 0 ? std::countr_zero(after) : 64 + std::countr_zero(high_);
        if (not_after == 0) return above;
        return (after | high_) == 0 || place - below <= above - place ? below : above;
    }

  private:
    Window(std::uint64_t low, std::uint64_t high) noexcept : low_(low), high_(high) {}

    static std::uint64_t half(const Token* tokens, Token token) noexcept {
        return equal_to(tokens, token) | static_cast<std::uint64_t>(equal_to(tokens + 16, token)) << 16;
    }

    std::uint64_t low_, high_;
};

}  // namespace trtlookup
