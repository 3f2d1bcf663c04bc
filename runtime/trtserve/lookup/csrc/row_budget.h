// How many of its drafts each sequence of a round verifies: decided for the whole batch, by what a row costs.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "verify_cost.h"

namespace trtlookup {

// What drafts are worth in a batch of one size, and how much more of them could be. Times are in steps of one sequence: a
// round without drafts takes as many as the batch has sequences.
//
// A draft that is accepted lets the round emit the token behind it too, and saves the time that this would have taken
// otherwise. That depends on how well it is told: in a copy that seldom breaks the next round would have brought it at the
// price of a row, where a copy ends it would have taken a round. So a draft is worth, where the token behind it is right
// with chance q once all before are, the time per token of a text whose every token is, drafted at the best length.
class Outlook {
  public:
    Outlook(const VerifyCost& cost, int batch, int most_drafts) {
        for (int i = 0; i <= kChances; ++i) {
            const double chance = static_cast<double>(i) / kChances;
            double expected = 1.0, power = 1.0, least = 1.0;
            for (int drafts = 1; drafts <= (batch == 1 ? kLongest : kLongestBeside); ++drafts) {
                power *= chance;
                expected += power;
                least = std::min(least, cost.at(batch, batch * drafts) / expected);
            }
            worth_[static_cast<std::size_t>(i)] = kFloor + (1.0 - kFloor) * least;
        }
        bound(cost, batch, most_drafts);
    }

    // Time that a draft is expected to save: `chance` is that it and all before it are right, `next` that the token behind
    // it is if those are.
    double saved(double chance, double next) const noexcept {
        return chance * worth_[static_cast<std::size_t>(next * kChances + 0.5)];
    }

    // Of the batch with as many draft rows, in its own steps: 1 with none.
    const std::vector<double>& costs() const noexcept { return costs_; }

    // The least that any row of the batch costs.
    double row() const noexcept { return row_; }

    // No `drafts` more, of which the first and all before it are right with `chance`, save more than this beyond the cost
    // of their rows.
    double more(double chance, int drafts) const noexcept {
        if (chance < hopeless_ - kMargin) return 0.0;
        return kMargin + gain_[static_cast<std::size_t>(drafts)] * std::max(0.0, (chance - hopeless_) / (1.0 - hopeless_));
    }

  private:
    static constexpr int kChances = 256;          // told apart
    static constexpr int kLongest = 32;           // drafts of the text that a draft's worth is reckoned by,
    static constexpr int kLongestBeside = 3;      // and beside others, where some of a batch draft nothing
    static constexpr double kFloor = 0.05;        // the least that a token is worth, for copies end
    static constexpr double kMargin = 1e-6;       // for rounding

    // What n drafts gain at most, F(n, c), by the chance c of the first and all before it, is the largest of many
    // c * savings - rows, so it is convex in c. It is 0 up to the chance from which no draft can pay for its row, and from
    // there to 1 it lies below the line to F(n, 1). That is bound in turn by any chance of the token behind a sure draft,
    // and F(n - 1) from there on, drawn as such a line.
    void bound(const VerifyCost& cost, int batch, int most_drafts) {
        row_ = kMost;
        for (int rows = 0; rows <= batch * most_drafts; ++rows) {
            costs_.push_back(cost.at(batch, rows));
            if (rows > 0) row_ = std::min(row_, (costs_.back() - costs_[costs_.size() - 2]) * batch);
        }
        hopeless_ = std::min(row_ / *std::max_element(worth_.begin(), worth_.end()), kHopeless);
        gain_.assign(static_cast<std::size_t>(most_drafts) + 1, 0.0);
        for (std::size_t n = 1; n < gain_.size(); ++n)
            for (int i = 0; i <= kChances; ++i) {
                const double then = std::max(0.0, (highest(i) - hopeless_) / (1.0 - hopeless_)) * gain_[n - 1];
                gain_[n] = std::max(gain_[n], worth_[static_cast<std::size_t>(i)] - row_ + then);
            }
    }

    static constexpr double kMost = 1e9;
    static constexpr double kHopeless = 0.99;
    // Of the chances that count as the i-th.
    static double highest(int i) noexcept { return std::min((i + 0.5) / kChances, 1.0); }

    std::array<double, kChances + 1> worth_;
    std::vector<double> costs_;
    double row_ = 0;
    double hopeless_ = 0;       // a chance from which no draft can pay
    std::vector<double> gain_;  // by the number of drafts, the first one sure: no more than this beyond their rows' cost
};

// One sequence's drafts as they are made, and whether more of them could change how many are verified. What each saves is
// written to `saved` when the token behind it is reached.
class Prospect {
  public:
    Prospect(const Outlook& outlook, int limit, double* saved) noexcept : outlook_(outlook), limit_(limit), saved_(saved) {}

    // The token behind the drafts made is right with chance `next`, if they are; 0 where there is none.
    void reach(double next) noexcept {
        if (drafts_ > 0) settle(next);
        next_ = next;
    }

    // That the drafts are right, and a token behind them that is right with `next` then.
    double chance(double next) const noexcept { return chance_ * next; }
    double chance() const noexcept { return chance(next_); }  // and the token reached

    // Neither the token reached nor more pay even at the least price of a row. At least one token is drafted.
    bool exhausted() const noexcept { return drafts_ > 0 && gain_ + outlook_.more(chance(), limit_ - drafts_) <= best_; }

    // The token reached is drafted.
    void draft() noexcept {
        chance_ *= next_;
        ++drafts_;
    }

    // There are no more drafts. At the limit nothing is searched behind the last one: what follows is told as well as it was.
    void finish() noexcept {
        if (drafts_ == limit_) settle(next_);
    }

  private:
    void settle(double next) noexcept {
        const double saved = outlook_.saved(chance_, next);
        saved_[drafts_ - 1] = saved;
        gain_ += saved - outlook_.row();
        best_ = std::max(best_, gain_);
    }

    const Outlook& outlook_;
    int limit_;
    double* saved_;
    int drafts_ = 0;
    double chance_ = 1, next_ = 0;
    double gain_ = 0, best_ = 0;
};

// One sequence's drafts: saved[i] is the time that draft i is expected to save, in steps of the sequence.
struct Offer {
    const double* saved;
    int count;
};

// Rows are given out one by one to the draft that saves most anywhere in the batch (the lower index where equal), and the
// number of rows is kept that saves most time over what they cost. No drafts unless that is kEdge of a step, which the
// estimates' own error could otherwise eat up.
class RowBudget {
  public:
    static constexpr double kEdge = 0.01;

    // Of a sequence at most `most_drafts` are offered.
    RowBudget(VerifyCost cost, int most_drafts) : cost_(std::move(cost)), most_drafts_(most_drafts) {}

    // For a batch of this size. Computed once.
    const Outlook& outlook(int batch) {
        return outlooks_.try_emplace(batch, cost_, batch, most_drafts_).first->second;
    }

    // Writes the drafts to verify of each of `offers` to `taken`. `others` sequences of the batch offer nothing.
    void divide(const std::vector<Offer>& offers, std::vector<int>& taken, int others = 0) {
        const int batch = static_cast<int>(offers.size()) + others;
        taken.assign(offers.size(), 0);
        int offered = 0;
        for (const Offer& offer : offers) offered += offer.count;
        if (offered == 0) return;
        const std::vector<double>& cost = outlook(batch).costs();
        if (batch == 1) {
            taken[0] = best_length(offers[0], cost);
            return;
        }
        heads_.clear();
        order_.clear();
        for (std::size_t i = 0; i < offers.size(); ++i)
            if (offers[i].count > 0) heads_.push_back(Head{offers[i].saved[0], i, 0});
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
                head.saved = offer.saved[head.draft];
                std::push_heap(heads_.begin(), heads_.end());
            } else {
                heads_.pop_back();
            }
        }
        for (std::size_t i = 0; i < kept; ++i) ++taken[order_[i]];
    }

  private:
    static int best_length(const Offer& offer, const std::vector<double>& cost) noexcept {
        double saving = 0, best = kEdge;
        int kept = 0;
        for (int count = 1; count <= offer.count; ++count) {
            saving += offer.saved[count - 1];
            const double gain = saving - (cost[static_cast<std::size_t>(count)] - 1.0);
            if (gain > best) {
                best = gain;
                kept = count;
            }
        }
        return kept;
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
    int most_drafts_;
    std::map<int, Outlook> outlooks_;  // by batch
    std::vector<Head> heads_;
    std::vector<std::size_t> order_;  // whose draft each row was given to
};

}  // namespace trtlookup
