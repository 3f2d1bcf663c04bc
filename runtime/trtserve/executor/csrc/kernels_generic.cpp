#include "simd_generic.h"
// The kernels are written over the Simd of the header above.
#include "kernels_impl.h"

namespace trtlookup::cpu {

const Kernels* kernels_generic() {
  static constexpr Kernels kernels = table("generic");
  return &kernels;
}

}  // namespace trtlookup::cpu
