// Rolling hash of the last n tokens: a polynomial modulo 2^64 with an odd multiplier, mixed before use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace trtlookup {

using Token = std::int32_t;  // non-negative

// The 64-bit finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014):
// every input bit reaches every output bit, which the raw polynomial's low bits do not give.
inline std::uint64_t mix(std::uint64_t x) noexcept {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ULL;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

// Hashes windows of a fixed number of tokens. Token t counts as t + 1, so that token 0 is not invisible.
class WindowHash {
  public:
    WindowHash(int window, std::uint64_t multiplier) noexcept : window_(window), multiplier_(multiplier | 1) {
        for (int i = 0; i < window; ++i) leaving_ *= multiplier_;
    }

    int window() const noexcept { return window_; }

    // Hash state of the `count` tokens at `tokens`; a full window has count == window().
    std::uint64_t of(const Token* tokens, std::size_t count) const noexcept {
        std::uint64_t state = 0;
        for (std::size_t i = 0; i < count; ++i) state = extend(state, tokens[i]);
        return state;
    }

    // One token more, none leaving: for a window that is not full yet.
    std::uint64_t extend(std::uint64_t state, Token entering) const noexcept {
        return state * multiplier_ + static_cast<std::uint64_t>(entering) + 1;
    }

    // One token more and the window's oldest gone.
    std::uint64_t roll(std::uint64_t state, Token leaving, Token entering) const noexcept {
        return extend(state, entering) - leaving_ * (static_cast<std::uint64_t>(leaving) + 1);
    }

    // The state of a window from those of all tokens before its begin and before its end.
    std::uint64_t between(std::uint64_t before_begin, std::uint64_t before_end) const noexcept {
        return before_end - leaving_ * before_begin;
    }

  private:
    int window_;
    std::uint64_t multiplier_;
    std::uint64_t leaving_ = 1;  // multiplier ^ window
};

// Histories are searched exactly, so their answers do not depend on the multiplier; their speed does. A multiplier
// unknown outside the process keeps a crafted prompt from sending all its n-grams to one place of the table.
inline std::uint64_t secret_multiplier() {
    static const std::uint64_t value = [] {
        std::random_device device;
        return (static_cast<std::uint64_t>(device()) << 32) | device() | 1;
    }();
    return value;
}

// The shared cache's table overwrites on collision, so its multiplier is fixed: proposals depend on calls alone.
inline constexpr std::uint64_t kFixedMultiplier = 0x9e3779b97f4a7c15ULL;

}  // namespace trtlookup
