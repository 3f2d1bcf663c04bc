// Runs unmodified __global__ functions on the host, block after block.
//
// Two engines. Fibers (default): the threads of a block take turns on one host thread, in ascending, descending or
// shuffled order, each running until it waits; a wait that can never end is reported as a divergent barrier. Host
// threads (-DEMU_THREADS): one std::thread a CUDA thread, so that ThreadSanitizer sees every race between barriers.
//
// Not modelled: shuffle masks, memory ordering between blocks, bank conflicts, resource limits.
#pragma once
#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#ifdef EMU_THREADS
#include <barrier>
#include <thread>
#else
#include <ucontext.h>
#endif

#define TL_EMULATED
#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __shared__ static

struct emu_dim {
  unsigned x = 1, y = 1, z = 1;
};

namespace emu {

enum class Order : int { ascending, descending, shuffled };

constexpr unsigned kLanes = 32;

// One exchange per warp operation; two sets, because a lane may reach the next operation before another has read this
// one's, but never the one after.
struct Warp {
  std::uint64_t values[2][kLanes];
};

inline emu_dim block_dim, grid_dim, block_index;
inline std::vector<Warp> warps;

#ifdef EMU_THREADS

struct Thread {
  emu_dim index;
  unsigned operations = 0;
};
inline thread_local Thread* current = nullptr;
inline std::unique_ptr<std::barrier<>> block_barrier;
inline std::vector<std::unique_ptr<std::barrier<>>> warp_barriers;

inline void sync_block() { block_barrier->arrive_and_wait(); }
inline void sync_warp() { warp_barriers[current->index.x / kLanes]->arrive_and_wait(); }

template <class Body>
void run_block(unsigned threads, Order, std::mt19937&, const Body& body) {
  block_barrier = std::make_unique<std::barrier<>>(threads);
  warp_barriers.clear();
  for (unsigned w = 0; w < threads / kLanes; ++w) warp_barriers.push_back(std::make_unique<std::barrier<>>(kLanes));
  std::vector<std::thread> running;
  for (unsigned i = 0; i < threads; ++i) {
    running.emplace_back([i, &body] {
      Thread self{{i, 0, 0}};
      current = &self;
      body();
      current = nullptr;
    });
  }
  for (auto& thread : running) thread.join();
}

#else

enum class State { ready, at_block, at_warp, done };

struct Thread {
  emu_dim index;
  unsigned operations = 0;
  State state = State::ready;
  bool started = false;
  std::jmp_buf here;
  ucontext_t entry;
  std::unique_ptr<char[]> stack;
};
inline Thread* current = nullptr;
inline std::jmp_buf scheduler;
inline std::vector<std::unique_ptr<Thread>> threads_;
inline void (*body_call)(const void*) = nullptr;
inline const void* body_object = nullptr;
constexpr std::size_t kStack = 64 * 1024;

inline void wait(State state) {
  current->state = state;
  if (!_setjmp(current->here)) _longjmp(scheduler, 1);
}
inline void sync_block() { wait(State::at_block); }
inline void sync_warp() { wait(State::at_warp); }

// A fiber lives on from block to block: entering one costs system calls.
inline void enter() {
  for (;;) {
    body_call(body_object);
    wait(State::done);
  }
}

inline void resume(Thread& thread) {
  current = &thread;
  if (_setjmp(scheduler)) return;
  if (thread.started) _longjmp(thread.here, 1);
  thread.started = true;
  getcontext(&thread.entry);
  thread.entry.uc_stack.ss_sp = thread.stack.get();
  thread.entry.uc_stack.ss_size = kStack;
  thread.entry.uc_link = nullptr;
  makecontext(&thread.entry, enter, 0);
  setcontext(&thread.entry);
}

// Makes ready those for whom everyone has come; whether there are any.
inline bool release(unsigned threads) {
  bool released = false;
  unsigned at_block = 0;
  for (unsigned w = 0; w < threads / kLanes; ++w) {
    unsigned at_warp = 0;
    for (unsigned i = w * kLanes; i < (w + 1) * kLanes; ++i) {
      at_warp += threads_[i]->state == State::at_warp;
      at_block += threads_[i]->state == State::at_block;
    }
    if (at_warp == kLanes) {
      for (unsigned i = w * kLanes; i < (w + 1) * kLanes; ++i) threads_[i]->state = State::ready;
      released = true;
    }
  }
  if (at_block == threads) {
    for (unsigned i = 0; i < threads; ++i) threads_[i]->state = State::ready;
    released = true;
  }
  return released;
}

template <class Body>
void run_block(unsigned threads, Order order, std::mt19937& random, const Body& body) {
  body_object = &body;
  body_call = [](const void* b) { (*static_cast<const Body*>(b))(); };
  while (threads_.size() < threads) {
    threads_.push_back(std::make_unique<Thread>());
    threads_.back()->stack = std::make_unique_for_overwrite<char[]>(kStack);
  }
  std::vector<unsigned> turn(threads);
  for (unsigned i = 0; i < threads; ++i) {
    Thread& thread = *threads_[i];
    thread.index = {i, 0, 0};
    thread.operations = 0;
    thread.state = State::ready;
    turn[i] = order == Order::descending ? threads - 1 - i : i;
  }
  for (;;) {
    if (order == Order::shuffled) {
      for (unsigned i = threads - 1; i > 0; --i) std::swap(turn[i], turn[random() % (i + 1)]);
    }
    unsigned done = 0;
    for (unsigned i : turn) {
      if (threads_[i]->state == State::ready) resume(*threads_[i]);
      done += threads_[i]->state == State::done;
    }
    if (done == threads) return;
    if (!release(threads)) {
      threads_.clear();  // some of them stand in the middle of a kernel
      throw std::runtime_error("divergent barrier");
    }
  }
}

#endif

template <class T>
T exchange(T value, unsigned from) {
  static_assert(sizeof(T) <= 8);
  const unsigned lane = current->index.x % kLanes;
  Warp& warp = warps[current->index.x / kLanes];
  auto& values = warp.values[current->operations++ % 2];
  std::memcpy(&values[lane], &value, sizeof(T));
  sync_warp();
  std::memcpy(&value, &values[from], sizeof(T));
  return value;
}
inline unsigned lane() { return current->index.x % kLanes; }

template <class... A, std::size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_const_t<A>*>(arguments[I])...);
}

// Like cuLaunchKernel: arguments[i] points to the kernel's i-th parameter. Blocks run in the same order as threads.
template <class... A>
void launch(void (*kernel)(A...), emu_dim grid, unsigned threads, Order order, unsigned seed, void** arguments) {
  if (threads == 0 || threads % kLanes || threads > 1024) throw std::runtime_error("blocks are 1 to 32 whole warps");
  std::mt19937 random(seed);
  block_dim = {threads, 1, 1};
  grid_dim = grid;
  warps.assign(threads / kLanes, {});
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  std::vector<std::uint64_t> turn(blocks);
  for (std::uint64_t i = 0; i < blocks; ++i) turn[i] = order == Order::descending ? blocks - 1 - i : i;
  if (order == Order::shuffled) std::shuffle(turn.begin(), turn.end(), random);
  for (std::uint64_t i : turn) {
    block_index = {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                   static_cast<unsigned>(i / grid.x / grid.y)};
    run_block(threads, order, random, [&] { call(kernel, arguments, std::index_sequence_for<A...>()); });
  }
}

}  // namespace emu

#define threadIdx (emu::current->index)
#define blockIdx (emu::block_index)
#define blockDim (emu::block_dim)
#define gridDim (emu::grid_dim)

inline void __syncthreads() { emu::sync_block(); }
inline void __threadfence() {}
template <class T>
T __shfl_sync(unsigned, T value, unsigned from) { return emu::exchange(value, from % emu::kLanes); }
template <class T>
T __shfl_xor_sync(unsigned, T value, unsigned mask) { return emu::exchange(value, emu::lane() ^ mask); }
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned delta) {
  return emu::exchange(value, emu::lane() >= delta ? emu::lane() - delta : emu::lane());
}
template <class T>
T atomicAdd(T* address, T value) { return __atomic_fetch_add(address, value, __ATOMIC_RELAXED); }
