// What stood last in place of a token that a copy named: the edit that a text makes again and again.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "hashing.h"

namespace trtlookup {

// A small direct-mapped table by the named token; the newest takes another's place.
class Amendments {
  public:
    static constexpr std::size_t kPlaces = 512;
    static constexpr int kMost = 3;

    struct Amendment {
        Token named = -1;   // -1: an empty place
        Token actual = -1;  // -1: the named token was always right
        std::uint8_t hits = 0;    // how often the amendment was right again, and
        std::uint8_t misses = 0;  // how often the named token was, both to kMost and later ones counting more
    };

    // Of a token; one that was never named has no counts.
    Amendment of(Token named) const noexcept {
        const Amendment& known = table_[place(named)];
        return known.named == named ? known : Amendment{};
    }

    void count(Token named, Token target) noexcept {
        Amendment& known = table_[place(named)];
        if (known.named != named) known = {named, -1, 0, 0};
        if (target == named) {
            if (known.misses < kMost) ++known.misses;
            if (known.hits > 0 && known.misses >= 2) --known.hits;
        } else if (target == known.actual) {
            if (known.hits < kMost) ++known.hits;
            if (known.misses > 0) --known.misses;
        } else {
            known = {named, target, 0, 0};
        }
    }

  private:
    static std::size_t place(Token named) noexcept { return static_cast<std::uint32_t>(named) * 0x9e3779b1u >> 23; }

    std::array<Amendment, kPlaces> table_;
};

}  // namespace trtlookup
