// How many tokens the next copy may propose, and which rounds go without one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace trtlookup {

// Starts at 2 (or max_drafts if lower), doubles after a copy accepted in full up to max_drafts, halves (not below 1)
// after one cut short. After k copies in a row of which nothing was accepted, min(2^(k-1), miss_backoff) rounds are
// skipped; any accepted token clears that. Rounds are counted by calls of skip_round().
class Window {
  public:
    Window(int max_drafts, int miss_backoff)
        : max_drafts_(max_drafts), miss_backoff_(miss_backoff), size_(std::min(2, max_drafts)) {
        if (max_drafts < 1 || max_drafts > 64)
            throw std::invalid_argument("max_drafts is " + std::to_string(max_drafts) + "; allowed: 1 to 64");
        if (miss_backoff < 0 || miss_backoff > 1024)
            throw std::invalid_argument("miss_backoff is " + std::to_string(miss_backoff) + "; allowed: 0 to 1024");
    }

    int size() const noexcept { return size_; }
    bool backing_off() const noexcept { return to_skip_ > 0; }
    std::int64_t rounds_skipped() const noexcept { return rounds_skipped_; }

    // Counts one round. True when the backoff holds it back.
    bool skip_round() noexcept {
        if (to_skip_ == 0) return false;
        --to_skip_;
        ++rounds_skipped_;
        return true;
    }

    // `accepted` of `proposed` drafts, 0 <= accepted <= proposed, proposed >= 1.
    void settle(int proposed, int accepted) noexcept {
        size_ = accepted == proposed ? std::min(2 * size_, max_drafts_) : std::max(size_ / 2, 1);
        if (accepted > 0) {
            misses_ = to_skip_ = 0;
            return;
        }
        misses_ = std::min(misses_ + 1, 31);  // 2^30 is past every miss_backoff already
        to_skip_ = std::min(1 << (misses_ - 1), miss_backoff_);
    }

  private:
    int max_drafts_;
    int miss_backoff_;
    int size_;
    int misses_ = 0;
    int to_skip_ = 0;
    std::int64_t rounds_skipped_ = 0;
};

}  // namespace trtlookup
