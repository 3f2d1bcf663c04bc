// How likely a candidate's next token is to be the target: shipped shares, adjusted by what the sequence shows.
#pragma once

#include <algorithm>
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
//            in the shared cache, each with and without a break remembered
//   near     after a break, tokens found again near it: 13 classes of match by 4 of distance
//   skip     after a break, the source's token at the same distance from it: 8 classes of distance by 4 of how many tokens
//            before it are equal again, by whether the broken copy had run for long
//   amend    what stood last in place of the token that the copy names: 4 classes of how often again by 4 of how often not
struct Cells {
    static constexpr int kMatches = 13;
    static constexpr int kRuns = 8, kVotes = 16, kDistances = 4, kLosts = 8, kAligned = 4, kAmends = 4;
    static constexpr int kShared = 8;  // votes from here on are of the shared cache
    static constexpr int kCursor = 0;
    static constexpr int kPlace = kCursor + 3 * kMatches * kRuns;
    static constexpr int kNear = kPlace + 2 * kMatches * kVotes;
    static constexpr int kSkip = kNear + kMatches * kDistances;
    static constexpr int kAmend = kSkip + 2 * kLosts * kAligned;
    static constexpr int kCount = kAmend + kAmends * kAmends;

    // Tables, for branches here are seldom predicted.
    static int match_class(int match) noexcept { return kMatchClasses[static_cast<std::size_t>(std::min(match, 49))]; }
    static int run_class(int run) noexcept { return kRunClasses[static_cast<std::size_t>(std::min(run, 33))]; }
    static int cursor(int match, int run, bool resumed, bool shared) noexcept {
        return kCursor + ((shared ? 2 : resumed ? 1 : 0) * kMatches + match_class(match)) * kRuns + run_class(run);
    }
    static int place(int match, int vote, bool broken) noexcept {
        return kPlace + ((broken ? kMatches : 0) + match_class(match)) * kVotes + vote;
    }
    static int near(int match, int distance) noexcept {
        return kNear + match_class(match) * kDistances + (distance <= 4 ? 0 : distance <= 12 ? 1 : distance <= 24 ? 2 : 3);
    }
    static int skip(int lost, int aligned, bool long_run) noexcept {
        return kSkip + ((long_run ? kLosts : 0) + std::min(lost, kLosts - 1)) * kAligned + std::min(aligned, kAligned - 1);
    }
    static int amend(int hits, int misses) noexcept { return kAmend + hits * kAmends + misses; }

  private:
    // By value, the class of each up to and with the last of `ends`, and of the one after it.
    template <std::size_t kValues, std::size_t kEnds>
    static constexpr std::array<std::uint8_t, kValues> classes(const int (&ends)[kEnds]) noexcept {
        std::array<std::uint8_t, kValues> classes{};
        for (std::size_t value = 0; value < kValues; ++value)
            for (const int end : ends) classes[value] = static_cast<std::uint8_t>(classes[value] + (static_cast<int>(value) > end ? 1 : 0));
        return classes;
    }
    static const std::array<std::uint8_t, 50> kMatchClasses;
    static const std::array<std::uint8_t, 34> kRunClasses;
};

inline constexpr std::array<std::uint8_t, 50> Cells::kMatchClasses = classes<50>({0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48});
inline constexpr std::array<std::uint8_t, 34> Cells::kRunClasses = classes<34>({0, 1, 2, 4, 8, 16, 32});

// How a token's chance is judged from what speaks for it (judge.h): a weight for each feature, by what names the token.
struct Features {
    enum : int { bias, share, likeliest, accuracy, match, amended, kept, output, context3, context2, context1, kCount };
    static constexpr int kSets = 12;
    static constexpr int kWeights = kSets * kCount;
};

// Shares of the cells and weights of the features, both in thousandths; see benchmarks/policies/fit.py, which wrote
// adaptive_priors.h.
struct Priors {
    std::array<std::uint16_t, Cells::kCount> shares;
    std::array<std::int16_t, Features::kWeights> weights;
};

Priors shipped_priors() noexcept;

// Shares, then weights.
inline Priors checked_priors(std::span<const int> given) {
    constexpr int kBoth = Cells::kCount + Features::kWeights;
    if (given.size() != static_cast<std::size_t>(kBoth))
        throw std::invalid_argument("priors: " + std::to_string(given.size()) + " values; allowed: " + std::to_string(kBoth));
    Priors priors{};
    for (std::size_t i = 0; i < given.size(); ++i) {
        const bool share = i < priors.shares.size();
        const int least = share ? 1 : -32000, most = share ? 999 : 32000;
        if (given[i] < least || given[i] > most)
            throw std::invalid_argument("priors: value " + std::to_string(i) + " is " + std::to_string(given[i]) + "; allowed: " +
                                        std::to_string(least) + " to " + std::to_string(most));
        if (share) priors.shares[i] = static_cast<std::uint16_t>(given[i]);
        else priors.weights[i - priors.shares.size()] = static_cast<std::int16_t>(given[i]);
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
        return (kPriorHits[priors_->shares[static_cast<std::size_t>(cell)]] + count.hits) / (kPrior + static_cast<double>(count.total));
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
    // What a prior's kPrior observations hit, by its thousandths.
    static constexpr auto kPriorHits = [] {
        std::array<double, 1000> hits{};
        for (std::size_t i = 0; i < hits.size(); ++i) hits[i] = static_cast<double>(i) / 1000.0 * kPrior;
        return hits;
    }();

    struct Count {
        std::uint8_t hits = 0, total = 0;
    };
    const Priors* priors_;
    std::array<Count, Cells::kCount> counts_{};
};

}  // namespace trtlookup
