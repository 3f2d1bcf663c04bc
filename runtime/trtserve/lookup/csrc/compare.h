// Comparisons of several tokens at once, without a branch for each: how texts agree is seldom predictable.
#pragma once

#include <algorithm>
#include <array>
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

// Four tokens in a row.
class Four {
  public:
    explicit Four(const Token* tokens) noexcept : tokens_(load(tokens)) {}

    // One more at the end; the first one goes.
    void push(Token token) noexcept {
#ifdef TRTLOOKUP_SSE2
        tokens_ = _mm_or_si128(_mm_srli_si128(tokens_, 4), _mm_slli_si128(_mm_cvtsi32_si128(token), 12));
#else
        std::copy(tokens_.begin() + 1, tokens_.end(), tokens_.begin());
        tokens_[3] = token;
#endif
    }

    // Bit i: the i-th is tokens[i].
    unsigned equal(const Token* tokens) const noexcept {
#ifdef TRTLOOKUP_SSE2
        return static_cast<unsigned>(_mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(tokens_, load(tokens)))));
#else
        unsigned equal = 0;
        for (int i = 0; i < 4; ++i) equal |= static_cast<unsigned>(tokens_[static_cast<std::size_t>(i)] == tokens[i]) << i;
        return equal;
#endif
    }

  private:
#ifdef TRTLOOKUP_SSE2
    static __m128i load(const Token* tokens) noexcept { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(tokens)); }
    __m128i tokens_;
#else
    static std::array<Token, 4> load(const Token* tokens) noexcept { return {tokens[0], tokens[1], tokens[2], tokens[3]}; }
    std::array<Token, 4> tokens_;
#endif
};

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

// Bit i: (words[i] & mask) == wanted, of 8, each of 64 bits and at a multiple of 16 bytes; only their lower halves are compared.
inline unsigned equal_low(const std::uint64_t* words, std::uint32_t mask, std::uint32_t wanted) noexcept {
#ifdef TRTLOOKUP_SSE2
    const __m128i masks = _mm_set1_epi32(static_cast<int>(mask)), all = _mm_set1_epi32(static_cast<int>(wanted));
    const auto four = [&](int i) {
        const auto two = [&](int j) { return _mm_castsi128_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(words + i + j))); };
        return _mm_cmpeq_epi32(_mm_and_si128(_mm_castps_si128(_mm_shuffle_ps(two(0), two(2), 0x88)), masks), all);
    };
    return static_cast<unsigned>(_mm_movemask_epi8(_mm_packs_epi16(_mm_packs_epi32(four(0), four(4)), _mm_setzero_si128())));
#else
    unsigned equal = 0;
    for (int i = 0; i < 8; ++i) equal |= static_cast<unsigned>((static_cast<std::uint32_t>(words[i]) & mask) == wanted) << i;
    return equal;
#endif
}

// Of 8 words, at a multiple of 16 bytes, the place of the least, compared without their last three bits. Words that are less
// than `alive` when their upper four bits are left out count as 0; these bits count if `with_upper`.
template <bool with_upper>
std::size_t least_of(const std::uint64_t* words, std::uint64_t alive) noexcept {
#ifdef TRTLOOKUP_SSE2
    // 64-bit integers cannot be compared, but positive floating-point numbers are ordered as their bits are. Shifted down
    // by two and with the bit below the sign set they are far from denormal and, as long as not all the upper bits are
    // set, no infinity. The last three bits tell which word it is.
    const auto number = [](__m128i bits) { return _mm_castsi128_pd(_mm_or_si128(_mm_srli_epi64(bits, 2), _mm_set1_epi64x(1LL << 62))); };
    const __m128d limit = number(_mm_set1_epi64x(static_cast<long long>(alive << 4)));
    const auto two = [&](int i) {
        const __m128i both = _mm_load_si128(reinterpret_cast<const __m128i*>(words + i));
        const __m128d lower = number(_mm_slli_epi64(both, 4));
        __m128d worth = lower;
        if constexpr (with_upper) worth = _mm_andnot_pd(_mm_cmplt_pd(lower, limit), number(both));
        const __m128d which = _mm_castsi128_pd(_mm_set_epi64x(1LL << 62 | (i + 1), 1LL << 62 | i));
        return _mm_or_pd(_mm_andnot_pd(_mm_castsi128_pd(_mm_set1_epi64x(7)), worth), which);
    };
    const __m128d least = _mm_min_pd(_mm_min_pd(two(0), two(2)), _mm_min_pd(two(4), two(6)));
    return static_cast<std::size_t>(_mm_cvtsi128_si64(_mm_castpd_si128(_mm_min_sd(least, _mm_unpackhi_pd(least, least))))) & 7;
#else
    std::size_t least = 0;
    std::uint64_t worth = ~std::uint64_t{0};
    for (std::size_t i = 0; i < 8; ++i) {
        const std::uint64_t lower = words[i] << 4, value = !with_upper ? lower : lower < alive << 4 ? 0 : words[i] & ~std::uint64_t{7};
        least = value < worth ? i : least;
        worth = std::min(value, worth);
    }
    return least;
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
