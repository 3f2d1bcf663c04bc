// A token's chance to be the target, from what speaks for it: a logistic regression for each kind of candidate.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "odds.h"

namespace trtlookup {

// All in whole thousandths, so that it comes out the same on every platform; the logarithms and chances are tables.
class Judge {
  public:
    static constexpr int kOne = 1000;

    explicit Judge(const Priors& priors) noexcept : priors_(&priors), tables_(&tables()) {}

    // What speaks for a token, weighed as it is told. Every feature that is not 0 is added once; bias is there already.
    class Evidence {
      public:
        void add(int feature, int value) noexcept { sum_ += std::int64_t{weights_[feature]} * value; }

      private:
        friend Judge;
        explicit Evidence(const std::int16_t* weights) noexcept : weights_(weights) { add(Features::bias, kOne); }
        const std::int16_t* weights_;
        std::int64_t sum_ = 0;
    };

    Evidence about(int set) const noexcept { return Evidence(priors_->weights.data() + set * Features::kCount); }

    double chance(const Evidence& evidence) const noexcept {
        constexpr std::int64_t kMillion = 1'000'000, kLimit = kSquash * kMillion;
        const std::int64_t above = std::clamp<std::int64_t>(evidence.sum_ + kLimit, 0, 2 * kLimit);
        return tables_->squashed[static_cast<std::size_t>((above * kPerUnit + kMillion / 2) / kMillion)];
    }

    // ln(p / (1 - p)), between those of 2 and 4094 of 4096.
    int stretch(double p) const noexcept { return tables_->stretched[place(p)]; }

    // The same of how often a context told the next token and how often not, counts of four bits each.
    int told(unsigned counts) const noexcept { return tables_->told[counts]; }

    // ln(1 + n), n at most 64.
    int log_of(int n) const noexcept { return tables_->logs[static_cast<std::size_t>(n)]; }

  private:
    static constexpr int kSteps = 4096, kSquash = 8, kPerUnit = 64, kMostLog = 64;
    static constexpr unsigned kCounts = 16;

    static std::size_t place(double p) noexcept {
        return static_cast<std::size_t>(std::clamp(static_cast<int>(p * kSteps + 0.5), 2, kSteps - 2));
    }

    struct Tables {
        std::array<std::int16_t, kSteps + 1> stretched{};
        std::array<double, 2 * kSquash * kPerUnit + 1> squashed{};
        std::array<std::int16_t, kMostLog + 1> logs{};
        std::array<std::int16_t, kCounts * kCounts> told{};

        Tables() noexcept {
            for (int i = 1; i < kSteps; ++i) stretched[static_cast<std::size_t>(i)] = thousandths(std::log(i / static_cast<double>(kSteps - i)));
            for (int i = 0; i <= 2 * kSquash * kPerUnit; ++i)
                squashed[static_cast<std::size_t>(i)] =
                    std::floor(1e6 / (1.0 + std::exp(kSquash - i / static_cast<double>(kPerUnit))) + 0.5) / 1e6;
            for (int i = 0; i <= kMostLog; ++i) logs[static_cast<std::size_t>(i)] = thousandths(std::log(1.0 + i));
            for (unsigned i = 0; i < told.size(); ++i) told[i] = stretched[place((i / kCounts + 0.5) / (i / kCounts + i % kCounts + 1.0))];
        }
        static std::int16_t thousandths(double value) noexcept { return static_cast<std::int16_t>(std::floor(value * kOne + 0.5)); }
    };

    static const Tables& tables() noexcept {
        static const Tables made;
        return made;
    }

    const Priors* priors_;
    const Tables* tables_;
};

}  // namespace trtlookup
