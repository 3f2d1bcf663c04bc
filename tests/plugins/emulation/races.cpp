// Every kernel once or twice on real threads (-DEMU_THREADS), for ThreadSanitizer to watch.
#include "cuda_emulation.hpp"

#include "kernels.cu"

#include <cstdio>

namespace {

template <class... P, class... A>
void run(void (*kernel)(P...), emu_dim grid, unsigned threads, A... arguments) {
  static_assert(sizeof...(P) == sizeof...(A));
  std::tuple<std::remove_const_t<P>...> values(arguments...);
  std::apply(
      [&](auto&... value) {
        void* pointers[] = {&value...};
        emu::launch(kernel, grid, threads, emu::Order::ascending, 1, pointers);
      },
      values);
}

}  // namespace

int main() {
  constexpr int kVocab = 97, kRows = 3, kBatch = 2, kThreads = 64;
  std::mt19937 random(1);
  std::vector<float> logits(kBatch * kRows * kVocab);
  for (float& x : logits) x = static_cast<float>(random() % 1000) / 100.0f;
  std::vector<int> row_start{0, kRows}, num_rows{kRows, kRows}, tokens(kBatch * kRows, 5), targets(kBatch * kRows),
      accepted(kBatch), next(kBatch);
  std::vector<unsigned char> failed(kBatch);
  std::vector<u32> arrived(kBatch);
  std::vector<u64> partial(kBatch * kRows * 3);
  run(tl_accept_greedy_f32, {2, kRows, kBatch}, kThreads, logits.data(), i64{kVocab}, row_start.data(), num_rows.data(),
      tokens.data(), kVocab, partial.data(), arrived.data(), targets.data(), accepted.data(), next.data(), failed.data());

  std::vector<int> counts(kVocab, 1), listed{4, 5, 96};
  std::vector<float> biases{1.0f, -2.0f, 0.5f};
  std::vector<float> scratch(kBatch * kRows * kVocab);
  Sampling sampled{};
  sampled.counts = counts.data();
  sampled.bias_tokens = listed.data();
  sampled.bias_values = biases.data();
  sampled.ban_tokens = listed.data();
  sampled.temperature = 1.5f;
  sampled.top_p = 0.9f;
  sampled.min_p = 0.001f;
  sampled.repetition_penalty = 1.2f;
  sampled.presence_penalty = 0.5f;
  sampled.top_k = 60;
  sampled.num_bias = 3;
  sampled.num_ban = 1;
  sampled.ban_rows = 2;
  std::vector<Sampling> sampling(kBatch, sampled);
  run(tl_accept_sampled_f32, {kRows, kBatch}, kThreads, logits.data(), i64{kVocab}, row_start.data(), num_rows.data(),
      tokens.data(), kVocab, sampling.data(), scratch.data(), arrived.data(), targets.data(), accepted.data(),
      next.data(), failed.data());

  run(tl_row_candidates_f32, {2, kBatch * kRows}, kThreads, logits.data(), kVocab, partial.data());
  run(tl_accept_candidates, {kBatch}, kThreads, partial.data(), tokens.data(), num_rows.data(), kRows, 2,
      targets.data(), accepted.data(), next.data());

  constexpr int kMaxLen = 300;
  std::vector<int> history(kBatch * kMaxLen), lengths{280, 290}, allowed{8, 8}, rows(kBatch * 9), counted(kBatch),
      start(kBatch);
  for (int i = 0; i < kBatch * kMaxLen; ++i) history[i] = i % 7;
  run(tl_lookup, {2, kBatch}, kThreads, history.data(), kMaxLen, lengths.data(), allowed.data(), 2, 4, 16, 9,
      partial.data(), arrived.data(), rows.data(), counted.data(), start.data());
  targets.assign(kBatch * kRows, 5);  // one token three times: its count is raised by three threads
  accepted.assign(kBatch, kRows - 1);
  run(tl_commit, {kBatch}, kThreads, row_start.data(), num_rows.data(), targets.data(), accepted.data(), history.data(),
      kMaxLen, lengths.data(), sampling.data());
  const bool right = counted[0] == 8 && start[0] == 273 && lengths[0] == 283 && counts[5] == 7;
  if (!right) std::printf("rows %d, start %d, length %d, count %d\n", counted[0], start[0], lengths[0], counts[5]);
  return right ? 0 : 1;
}
