// What a verify costs by its rows, relative to the same batch without drafts.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace trtlookup {

// Measured times of verifies, made whole: rows[k][r - 1] is the time of batches[k] sequences with r rows each, never
// falling as r grows. Without measurements every row beyond a sequence's first adds kDefaultRow of a step.
class VerifyCost {
  public:
    static constexpr double kDefaultRow = 0.05;

    VerifyCost() = default;
    VerifyCost(std::vector<int> batches, std::vector<std::vector<double>> rows)
        : batches_(std::move(batches)), rows_(std::move(rows)) {
        if (batches_.size() != rows_.size())
            throw std::invalid_argument("cost: " + std::to_string(batches_.size()) + " batches and " +
                                        std::to_string(rows_.size()) + " lists of times");
        for (std::size_t k = 0; k < batches_.size(); ++k) {
            if (batches_[k] < 1 || (k > 0 && batches_[k] <= batches_[k - 1]))
                throw std::invalid_argument("cost: batches must be 1 or more and ascend");
            if (rows_[k].size() < 2) throw std::invalid_argument("cost: a batch needs the times of at least 2 row counts");
            for (std::size_t r = 0; r < rows_[k].size(); ++r)
                if (!std::isfinite(rows_[k][r]) || rows_[k][r] <= 0 || (r > 0 && rows_[k][r] < rows_[k][r - 1]))
                    throw std::invalid_argument("cost: times must be positive and must not fall as rows grow");
        }
    }

    // Of a verify with `extra` draft rows spread over `batch` sequences; without drafts 1.
    double at(int batch, int extra) const noexcept {
        if (batches_.empty()) return 1.0 + kDefaultRow * static_cast<double>(extra);
        const double rows = 1.0 + static_cast<double>(extra) / static_cast<double>(batch);
        const std::size_t above = static_cast<std::size_t>(std::lower_bound(batches_.begin(), batches_.end(), batch) - batches_.begin());
        if (above == batches_.size()) return time(above - 1, rows) / rows_[above - 1][0];
        if (above == 0 || batches_[above] == batch) return time(above, rows) / rows_[above][0];
        const double share = static_cast<double>(batch - batches_[above - 1]) / static_cast<double>(batches_[above] - batches_[above - 1]);
        const double low = time(above - 1, rows), high = time(above, rows);
        return (low + (high - low) * share) / (rows_[above - 1][0] + (rows_[above][0] - rows_[above - 1][0]) * share);
    }

  private:
    // Between two row counts on the line between them; past the last one on the line through the last two.
    double time(std::size_t k, double rows) const noexcept {
        const std::vector<double>& times = rows_[k];
        const std::size_t below = std::min(static_cast<std::size_t>(rows), times.size() - 1);
        const double from = times[below - 1];
        return from + (times[below] - from) * (rows - static_cast<double>(below));
    }

    std::vector<int> batches_;
    std::vector<std::vector<double>> rows_;
};

}  // namespace trtlookup
