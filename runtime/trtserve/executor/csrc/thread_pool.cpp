#include "thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trtlookup::cpu {

namespace {

// Long enough to bridge the serial stretches of a forward, short enough not to eat a shared core between forwards.
constexpr int kSpins = 2000;

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { worker(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (auto& w : workers_) w.join();
}

int ThreadPool::claim() {
  std::uint64_t ticket = ticket_.load(std::memory_order_relaxed);
  while ((ticket & 0xFFFFFFFFu) < (ticket >> 32))
    if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acquire, std::memory_order_relaxed))
      return static_cast<int>(ticket & 0xFFFFFFFFu);
  return -1;
}

void ThreadPool::work_on(int thread) {
  int task = claim();
  while (task >= 0) {
    // The task in hand keeps the job unfinished, so what is claimed next belongs to the same job.
    const int next = claim();
    call_(context_, task, next, thread);
    if (unfinished_.fetch_sub(1) == 1 && waiting_.load()) unfinished_.notify_one();
    task = next;
  }
}

void ThreadPool::share(int count, Call call, void* context) {
  call_ = call;
  context_ = context;
  unfinished_.store(count, std::memory_order_relaxed);
  ticket_.store(static_cast<std::uint64_t>(count) << 32, std::memory_order_release);
  epoch_.fetch_add(1);
  if (sleepers_.load() > 0) epoch_.notify_all();
  work_on(0);
  for (int i = 0; i < kSpins; ++i) {
    if (unfinished_.load(std::memory_order_acquire) == 0) return;
    relax();
  }
  waiting_.store(true);
  for (int left = unfinished_.load(); left != 0; left = unfinished_.load()) unfinished_.wait(left);
  waiting_.store(false);
}

void ThreadPool::worker(int thread) {
  int seen = 0;
  for (;;) {
    int now = epoch_.load(std::memory_order_acquire);
    for (int i = 0; now == seen && i < kSpins; ++i) {
      relax();
      now = epoch_.load(std::memory_order_acquire);
    }
    if (now == seen) {
      sleepers_.fetch_add(1);
      epoch_.wait(seen);
      sleepers_.fetch_sub(1);
      continue;
    }
    if (stop_.load()) return;
    seen = now;
    work_on(thread);
  }
}

}  // namespace trtlookup::cpu
