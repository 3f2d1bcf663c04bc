// Compiled for the baseline: nothing of a kernels unit may run before it is known that the machine can run it.
#include "levels.h"

namespace trtlookup::cpu {

std::vector<const Kernels*> available_kernels() {
  std::vector<const Kernels*> available{kernels_generic()};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    available.push_back(kernels_avx2());
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      available.push_back(kernels_avx512());
  }
#endif
  return available;
}

}  // namespace trtlookup::cpu
