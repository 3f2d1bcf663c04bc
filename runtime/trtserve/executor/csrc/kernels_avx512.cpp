#include "kernels.h"

#if defined(__x86_64__)
#include "simd_avx512.h"
//
#include "kernels_impl.h"

namespace trtlookup::cpu {

const Kernels* kernels_avx512() {
  static constexpr Kernels kernels = table("avx512");
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") ? &kernels : nullptr;
}

}  // namespace trtlookup::cpu
#else
namespace trtlookup::cpu {

const Kernels* kernels_avx512() { return nullptr; }

}  // namespace trtlookup::cpu
#endif
