#include "kernels.h"

#if defined(__x86_64__)
#include "simd_avx2.h"
// The kernels are written over the Simd of the header above.
#include "kernels_impl.h"

namespace trtlookup::cpu {

const Kernels* kernels_avx2() {
  static constexpr Kernels kernels = table("avx2");
  return &kernels;
}

}  // namespace trtlookup::cpu
#else
namespace trtlookup::cpu {

const Kernels* kernels_avx2() { return nullptr; }

}  // namespace trtlookup::cpu
#endif
