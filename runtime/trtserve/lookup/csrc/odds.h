// How likely a candidate's next token is to be the target: shipped shares, adjusted by what the sequence shows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

namespace trtlookup {

// What is told apart, one cell each:
//   cursor   a copy that goes on: 13 classes of match by 8 of run (tokens copied without a break), by whether it is from
//            the shared cache, or from elsewhere and was resumed after a break of another, or neither
//   place    an earlier occurrence: 13 classes of match by 8 of what other occurrences say, in the sequence's own text and
//            in the shared cache
//   near     after a break, tokens found again near it: 13 classes of match by 4 of distance
//   skip     after a break, the source's token at the same distance from it: 13 classes of distance
struct Cells {
    static constexpr int kMatches = 13;
    static constexpr int kRuns = 8, kVotes = 16, kDistances = 4;
    static constexpr int kShared = 8;  // votes from here on are of the shared cache
    static constexpr int kCursor = 0;
    static constexpr int kPlace = kCursor + 3 * kMatches * kRuns;
    static constexpr int kNear = kPlace + kMatches * kVotes;
    static constexpr int kSkip = kNear + kMatches * kDistances;
    static constexpr int kCount = kSkip + kMatches;

    static int match_class(int match) noexcept {
        if (match <= 4) return match;
        if (match <= 8) return match <= 6 ? 5 : 6;
        if (match <= 16) return match <= 12 ? 7 : 8;
        if (match <= 32) return match <= 24 ? 9 : 10;
        return match <= 48 ? 11 : 12;
    }
    static int run_class(int run) noexcept {
        if (run <= 2) return run;
        if (run <= 8) return run <= 4 ? 3 : 4;
        return run <= 16 ? 5 : run <= 32 ? 6 : 7;
    }
    static int cursor(int match, int run, bool resumed, bool shared) noexcept {
        return kCursor + ((shared ? 2 : resumed ? 1 : 0) * kMatches + match_class(match)) * kRuns + run_class(run);
    }
    static int place(int match, int vote) noexcept { return kPlace + match_class(match) * kVotes + vote; }
    static int near(int match, int distance) noexcept {
        return kNear + match_class(match) * kDistances + (distance <= 4 ? 0 : distance <= 12 ? 1 : distance <= 24 ? 2 : 3);
    }
    static int skip(int distance) noexcept { return kSkip + (distance < kMatches ? distance : kMatches - 1); }
};

// In thousandths; see benchmarks/policies/fit.py, which wrote adaptive_priors.h.
using Priors = std::array<std::uint16_t, Cells::kCount>;

Priors shipped_priors() noexcept;

inline Priors checked_priors(std::span<const int> given) {
    if (given.size() != static_cast<std::size_t>(Cells::kCount))
        throw std::invalid_argument("priors: " + std::to_string(given.size()) + " values; allowed: " + std::to_string(Cells::kCount));
    Priors priors{};
    for (std::size_t i = 0; i < given.size(); ++i) {
        if (given[i] < 1 || given[i] > 999)
            throw std::invalid_argument("priors: value " + std::to_string(i) + " is " + std::to_string(given[i]) + "; allowed: 1 to 999");
        priors[i] = static_cast<std::uint16_t>(given[i]);
    }
    return priors;
}

// One sequence's counts on top of the priors, which weigh as much as kPrior observations.
class Odds {
  public:
    static constexpr int kPrior = 8;
    static constexpr int kMost = 64;  // observations kept: then both counts are halved, so that old text fades

    explicit Odds(const Priors& priors) noexcept : priors_(&priors) {}

    double chance(int cell) const noexcept {
        const Count& count = counts_[static_cast<std::size_t>(cell)];
        const double prior = static_cast<double>((*priors_)[static_cast<std::size_t>(cell)]) / 1000.0;
        return (prior * kPrior + count.hits) / (kPrior + static_cast<double>(count.total));
    }

    void count(int cell, bool hit) noexcept {
        Count& count = counts_[static_cast<std::size_t>(cell)];
        if (count.total == kMost) {
            count.total /= 2;
            count.hits /= 2;
        }
        ++count.total;
        count.hits = static_cast<std::uint8_t>(count.hits + (hit ? 1 : 0));
    }

  private:
    struct Count {
        std::uint8_t hits = 0, total = 0;
    };
    const Priors* priors_;
    std::array<Count, Cells::kCount> counts_{};
};

}  // namespace trtlookup
