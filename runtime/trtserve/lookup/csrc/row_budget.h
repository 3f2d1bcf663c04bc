// How many of its drafts each sequence of a round verifies: decided for the whole batch, by what a row costs.
#pragma once

#include <algorithm>
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

// Rows are given out one by one to the likeliest draft anywhere in the batch (the lower index where equal), and the
// number of rows is kept at which the round is expected to emit the most tokens per time. No drafts unless that beats a
// round without any by kEdge, which the estimates' own error could otherwise eat up.
class RowBudget {
  public:
    static constexpr double kEdge = 1.02;

    explicit RowBudget(VerifyCost cost) : cost_(std::move(cost)) {}

    // Writes the drafts to verify of each of `offers` to `taken`. `others` sequences of the batch offer nothing.
    void divide(const std::vector<Offer>& offers, std::vector<int>& taken, int others = 0) {
        const int batch = static_cast<int>(offers.size()) + others;
        taken.assign(offers.size(), 0);
        int offered = 0;
        for (const Offer& offer : offers) offered += offer.count;
        if (offered == 0) return;
        const std::vector<double>& cost = costs(batch, offered);
        if (batch == 1) {
            taken[0] = best_length(offers[0], cost);
            return;
        }
        heads_.clear();
        order_.clear();
        for (std::size_t i = 0; i < offers.size(); ++i)
            if (offers[i].count > 0) heads_.push_back(Head{offers[i].chances[0], i, 0});
        std::make_heap(heads_.begin(), heads_.end());
        double expected = batch, best = batch * kEdge;
        std::size_t kept = 0;
        while (!heads_.empty()) {
            std::pop_heap(heads_.begin(), heads_.end());
            Head& head = heads_.back();
            expected += head.chance;
            order_.push_back(head.sequence);
            const double rate = expected / cost[order_.size()];
            if (rate > best) {
                best = rate;
                kept = order_.size();
            }
            const Offer& offer = offers[head.sequence];
            if (++head.draft < offer.count) {
                head.chance = offer.chances[head.draft];
                std::push_heap(heads_.begin(), heads_.end());
            } else {
                heads_.pop_back();
            }
        }
        for (std::size_t i = 0; i < kept; ++i) ++taken[order_[i]];
    }

  private:
    static int best_length(const Offer& offer, const std::vector<double>& cost) noexcept {
        double expected = 1.0, best = kEdge;
        int kept = 0;
        for (int count = 1; count <= offer.count; ++count) {
            expected += offer.chances[count - 1];
            const double rate = expected / cost[static_cast<std::size_t>(count)];
            if (rate > best) {
                best = rate;
                kept = count;
            }
        }
        return kept;
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
        double chance;
        std::size_t sequence;
        int draft;
        bool operator<(const Head& other) const noexcept {
            return chance != other.chance ? chance < other.chance : sequence > other.sequence;
        }
    };
    VerifyCost cost_;
    std::vector<std::vector<double>> costs_;  // by batch, then draft rows
    std::vector<Head> heads_;
    std::vector<std::size_t> order_;  // whose draft each row was given to
};

}  // namespace trtlookup
