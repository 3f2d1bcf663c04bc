#include "accept.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace trtlookup_host {
namespace {

constexpr std::size_t kSamplingBytes = 96;
// Starting a thread costs what reading a few hundred kilobytes does.
constexpr std::ptrdiff_t kElementsPerThread = 1 << 18;

std::size_t element_bytes(Format format) { return format == Format::float32 ? 4 : 2; }

// One thread's scratch memory, allocated when the first row that samples needs it.
class OwnedScratch {
 public:
  const Scratch& get(const Rows& rows, int vocab) {
    if (!shared_) {
      logits_ = std::make_unique_for_overwrite<float[]>(vocab);
      weights_ = std::make_unique_for_overwrite<unsigned long long[]>(vocab);
      keys_ = std::make_unique_for_overwrite<unsigned[]>(vocab);
      shared_ = std::make_unique_for_overwrite<unsigned long long[]>(rows.row_shared_bytes / 8 + 1);
      view_ = {logits_.get(), weights_.get(), keys_.get(), shared_.get()};
    }
    return view_;
  }

 private:
  std::unique_ptr<float[]> logits_;
  std::unique_ptr<unsigned long long[]> weights_, shared_;
  std::unique_ptr<unsigned[]> keys_;
  Scratch view_{};
};

// Rows are taken in the order (row 0 of every sequence, row 1 of every sequence, ...), so that a sequence's row is
// rarely started before it is known whether the drafts before it were accepted. `last[b]` is the lowest row known to
// end sequence b; rows after it are not needed.
class Round {
 public:
  Round(const Rows& rows, const AcceptBatch& batch) : rows_(rows), batch_(batch), last_(batch.batch) {
    for (int b = 0; b < batch.batch; ++b) {
      last_[b].store(batch.num_rows[b] - 1, std::memory_order_relaxed);
      max_rows_ = std::max(max_rows_, batch.num_rows[b]);
    }
  }

  void work() noexcept try {
    OwnedScratch scratch;
    const std::ptrdiff_t items = std::ptrdiff_t{max_rows_} * batch_.batch;
    for (std::ptrdiff_t item; (item = taken_.fetch_add(1, std::memory_order_relaxed)) < items;) {
      row(static_cast<int>(item / batch_.batch), static_cast<int>(item % batch_.batch), scratch);
    }
  } catch (const std::bad_alloc&) {
    out_of_memory_.store(true);
  }

  void finish() {
    if (out_of_memory_.load()) throw std::bad_alloc();
    for (int b = 0; b < batch_.batch; ++b) {
      const int rows = batch_.num_rows[b];
      int* targets = batch_.targets + batch_.row_start[b];
      const int last = last_[b].load(std::memory_order_relaxed);
      std::fill(targets + last + 1, targets + rows, -1);
      batch_.accepted[b] = std::max(last, 0);
      batch_.next[b] = rows > 0 ? targets[last] : -1;
      batch_.failed[b] = rows > 0 && targets[last] < 0;
    }
  }

 private:
  void row(int r, int b, OwnedScratch& scratch) {
    if (r > last_[b].load(std::memory_order_relaxed)) return;
    const std::ptrdiff_t at = std::ptrdiff_t{batch_.row_start[b]} + r;
    const char* logits = static_cast<const char*>(batch_.logits) + at * batch_.row_stride * element_bytes(batch_.format);
    const int* tokens = batch_.tokens + batch_.row_start[b];
    int target;
    if (batch_.sampling) {
      const char* sampling = static_cast<const char*>(batch_.sampling) + b * kSamplingBytes;
      target = rows_.target(logits, batch_.format, batch_.vocab, sampling, r, tokens, scratch.get(rows_, batch_.vocab));
    } else {
      target = rows_.greedy(logits, batch_.format, batch_.vocab);
    }
    batch_.targets[at] = target;
    if (r + 1 < batch_.num_rows[b] && target >= 0 && target == tokens[r + 1]) return;  // the draft is accepted
    int last = last_[b].load(std::memory_order_relaxed);
    while (r < last && !last_[b].compare_exchange_weak(last, r, std::memory_order_relaxed)) {
    }
  }

  const Rows& rows_;
  const AcceptBatch& batch_;
  std::vector<std::atomic<int>> last_;
  int max_rows_ = 0;
  std::atomic<std::ptrdiff_t> taken_{0};
  std::atomic<bool> out_of_memory_{false};
};

}  // namespace

const Rows& pick_rows() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return avx512_rows();
  }
  if (__builtin_cpu_supports("avx2")) return avx2_rows();
#endif
  return baseline_rows();
}

void accept(const Rows& rows, const AcceptBatch& batch, int threads) {
  Round round(rows, batch);
  std::ptrdiff_t total_rows = 0;
  for (int b = 0; b < batch.batch; ++b) total_rows += batch.num_rows[b];
  const std::ptrdiff_t useful = std::min<std::ptrdiff_t>(total_rows * batch.vocab / kElementsPerThread + 1, total_rows);
  std::vector<std::jthread> helpers;
  for (std::ptrdiff_t i = 1; i < std::min<std::ptrdiff_t>(threads, useful); ++i) {
    helpers.emplace_back([&round] { round.work(); });
  }
  round.work();
  helpers.clear();  // joins
  round.finish();
}

}  // namespace trtlookup_host
