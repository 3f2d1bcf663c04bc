// Fork-join threads that share out numbered tasks. The calling thread works too, and no step waits for a thread that
// has claimed nothing: on cores shared with other processes a descheduled worker delays nobody.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace trtlookup::cpu {

class ThreadPool {
 public:
  // `threads` counts the caller: 1 starts none.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls work(task, next, thread) once for every task in [0, count), and returns when all are done. `next` is the
  // task the same thread does after this one, or -1; thread is in [0, threads()). One caller at a time.
  template <class Work>
  void run(int count, Work&& work) {
    using W = std::remove_reference_t<Work>;
    if (count <= 0) return;
    if (workers_.empty() || count == 1) {
      for (int i = 0; i < count; ++i) work(i, i + 1 < count ? i + 1 : -1, 0);
      return;
    }
    share(count, [](void* context, int task, int next, int thread) { (*static_cast<W*>(context))(task, next, thread); },
          &work);
  }

 private:
  using Call = void (*)(void* context, int task, int next, int thread);

  void share(int count, Call call, void* context);
  void work_on(int thread);
  void worker(int thread);
  // The next unclaimed task of the current job, or -1. Claiming one keeps the job alive until it is done.
  int claim();

  // The current job: count in the high half, next unclaimed task in the low half. One word, so that a claim and the
  // job it belongs to cannot be torn apart.
  alignas(64) std::atomic<std::uint64_t> ticket_{0};
  alignas(64) std::atomic<int> unfinished_{0};
  alignas(64) std::atomic<int> epoch_{0};  // counts jobs; idle workers sleep on it
  std::atomic<int> sleepers_{0};
  std::atomic<bool> waiting_{false};  // the caller sleeps on unfinished_
  std::atomic<bool> stop_{false};
  Call call_ = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> workers_;
};

}  // namespace trtlookup::cpu
