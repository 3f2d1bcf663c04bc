#include "kernels.h"

#if defined(__x86_64__)
#include "simd_avx512.h"
// The kernels are written over the Simd of the header above.
#include "kernels_impl.h"

namespace trtlookup::cpu {

const Kernels* kernels_avx512() {
  static constexpr Kernels kernels = table("avx512");
  return &kernels;
}

}  // namespace trtlookup::cpu
#else
namespace trtlookup::cpu {

const Kernels* kernels_avx512() { return nullptr; }

}  // namespace trtlookup::cpu
#endif
