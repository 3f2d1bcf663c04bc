// How many of its drafts each sequence of a round verifies: decided for the whole batch, by what a row costs.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "verify_cost.h"

namespace trtlookup {

// One sequence's drafts: chances[i] is how likely draft i and all before it are accepted, so it never rises with i.
struct Offer {
    const double* chances;
    int count;
};

// A draft that is accepted saves the time that its token would have taken otherwise, and that depends on where it stands:
// in a copy that seldom breaks the next round would have emitted it at the price of a row, after a break it would have
// taken a round. So a token that is right with chance q, once all before it are, is worth the time per token of a text
// whose every token is, drafted at the best length. Rows are given out one by one to the draft that saves most anywhere in
// the batch (the lower index where equal), and the number of rows is kept that saves most time over what they cost. No
// drafts unless that is kEdge of a step, which the estimates' own error could otherwise eat up.
class RowBudget {
  public:
    static constexpr double kEdge = 0.01;
    static constexpr double kFloor = 0.05;  // of a step: the least that a token is worth, for copies end

    explicit RowBudget(VerifyCost cost) : cost_(std::move(cost)) {}

    // Writes the drafts to verify of each of `offers` to `taken`. `others` sequences of the batch offer nothing.
    void divide(const std::vector<Offer>& offers, std::vector<int>& taken, int others = 0) {
        const int batch = static_cast<int>(offers.size()) + others;
        taken.assign(offers.size(), 0);
        int offered = 0;
        for (const Offer& offer : offers) offered += offer.count;
        if (offered == 0) return;
        const std::vector<double>& cost = costs(batch, offered);
        const Worths& worth = worths(batch);
        if (batch == 1) {
            taken[0] = best_length(offers[0], cost, worth);
            return;
        }
        heads_.clear();
        order_.clear();
        for (std::size_t i = 0; i < offers.size(); ++i)
            if (offers[i].count > 0) heads_.push_back(Head{saved(offers[i], 0, worth), i, 0});
        std::make_heap(heads_.begin(), heads_.end());
        double saving = 0, best = kEdge;
        std::size_t kept = 0;
        while (!heads_.empty()) {
            std::pop_heap(heads_.begin(), heads_.end());
            Head& head = heads_.back();
            saving += head.saved / batch;
            order_.push_back(head.sequence);
            const double gain = saving - (cost[order_.size()] - 1.0);
            if (gain > best) {
                best = gain;
                kept = order_.size();
            }
            const Offer& offer = offers[head.sequence];
            if (++head.draft < offer.count) {
                head.saved = saved(offer, head.draft, worth);
                std::push_heap(heads_.begin(), heads_.end());
            } else {
                heads_.pop_back();
            }
        }
        for (std::size_t i = 0; i < kept; ++i) ++taken[order_[i]];
    }

  private:
    static constexpr int kChances = 256;  // told apart
    static constexpr int kLongest = 32;   // drafts of the text that a token's worth is reckoned by,
    static constexpr int kLongestBeside = 3;   // and beside others, where some of a batch draft nothing
    using Worths = std::array<double, kChances + 1>;

    // Time that draft `i` is expected to save, in steps of its sequence.
    static double saved(const Offer& offer, int i, const Worths& worth) noexcept {
        const double chance = offer.chances[i], before = i == 0 ? 1.0 : offer.chances[i - 1];
        const double given = before > 0 ? std::min(chance / before, 1.0) : 0.0;
        return chance * worth[static_cast<std::size_t>(given * kChances + 0.5)];
    }

    static int best_length(const Offer& offer, const std::vector<double>& cost, const Worths& worth) noexcept {
        double saving = 0, best = kEdge;
        int kept = 0;
        for (int count = 1; count <= offer.count; ++count) {
            saving += saved(offer, count - 1, worth);
            const double gain = saving - (cost[static_cast<std::size_t>(count)] - 1.0);
            if (gain > best) {
                best = gain;
                kept = count;
            }
        }
        return kept;
    }

    // By chance, in a batch of this size. Computed once.
    const Worths& worths(int batch) {
        const auto place = static_cast<std::size_t>(batch);
        if (worths_.size() <= place) worths_.resize(place + 1);
        Worths& known = worths_[place];
        if (known[0] > 0) return known;
        for (int i = 0; i <= kChances; ++i) {
            const double chance = static_cast<double>(i) / kChances;
            double expected = 1.0, power = 1.0, least = 1.0;
            for (int drafts = 1; drafts <= (batch == 1 ? kLongest : kLongestBeside); ++drafts) {
                power *= chance;
                expected += power;
                least = std::min(least, cost_.at(batch, batch * drafts) / expected);
            }
            known[static_cast<std::size_t>(i)] = kFloor + (1.0 - kFloor) * least;
        }
        return known;
    }

    // Of a batch of this size with 0 to `offered` draft rows, and perhaps more. Computed once.
    const std::vector<double>& costs(int batch, int offered) {
        const auto place = static_cast<std::size_t>(batch);
        if (costs_.size() <= place) costs_.resize(place + 1);
        std::vector<double>& known = costs_[place];
        while (known.size() <= static_cast<std::size_t>(offered)) known.push_back(cost_.at(batch, static_cast<int>(known.size())));
        return known;
    }

    struct Head {
        double saved;
        std::size_t sequence;
        int draft;
        bool operator<(const Head& other) const noexcept {
            return saved != other.saved ? saved < other.saved : sequence > other.sequence;
        }
    };
    VerifyCost cost_;
    std::vector<std::vector<double>> costs_;  // by batch, then draft rows
    std::vector<Worths> worths_;              // by batch
    std::vector<Head> heads_;
    std::vector<std::size_t> order_;  // whose draft each row was given to
};

}  // namespace trtlookup
