#include "kernels.h"

#if defined(__x86_64__)
#include "simd_avx2.h"
//
#include "kernels_impl.h"

namespace trtlookup::cpu {

const Kernels* kernels_avx2() {
  static constexpr Kernels kernels = table("avx2");
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kernels : nullptr;
}

}  // namespace trtlookup::cpu
#else
namespace trtlookup::cpu {

const Kernels* kernels_avx2() { return nullptr; }

}  // namespace trtlookup::cpu
#endif
