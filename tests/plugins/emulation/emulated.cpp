// The kernels as a library: emulated_launch() is to tests what cuLaunchKernel is to a GPU.
#include "cuda_emulation.hpp"

#include "kernels.cu"

#include <string_view>

namespace {

struct Message {
  char* text;
  unsigned size;
  int fail(const char* what) const {
    std::strncpy(text, what, size - 1);
    return 1;
  }
};

}  // namespace

extern "C" int emulated_launch(const char* name, const unsigned* grid, unsigned threads, int order, unsigned seed,
                               void** arguments, char* error, unsigned error_size) try {
  const emu_dim dim{grid[0], grid[1], grid[2]};
#define TRY(kernel) \
  if (std::string_view(name) == #kernel) return emu::launch(kernel, dim, threads, emu::Order{order}, seed, arguments), 0
#define TRY_FORMATS(kernel) \
  TRY(kernel##_f32);        \
  TRY(kernel##_f16);        \
  TRY(kernel##_bf16)
  TRY_FORMATS(tl_accept_greedy);
  TRY_FORMATS(tl_accept_sampled);
  TRY_FORMATS(tl_row_candidates);
  TRY(tl_accept_candidates);
  TRY(tl_commit);
  TRY(tl_lookup);
  return Message{error, error_size}.fail("no such kernel");
} catch (const std::exception& e) {
  return Message{error, error_size}.fail(e.what());
}

// Numbers, for tests of their own.
extern "C" void weights_of(const float* d, unsigned long long* out, int n) {
  for (int i = 0; i < n; ++i) out[i] = weight_of(d[i]);
}
extern "C" void random_bits_of(unsigned long long seed, const unsigned long long* positions, unsigned long long* out,
                               int n) {
  for (int i = 0; i < n; ++i) out[i] = random_bits(seed, positions[i]);
}
extern "C" void halves_to_float(const unsigned short* bits, float* out, int n) {
  for (int i = 0; i < n; ++i) out[i] = to_float(Half{bits[i]});
}
