// Vectors of four floats through the compiler's vector extensions: any architecture. Included by one translation unit.
#pragma once
#include <cstdint>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

struct Simd {
  typedef float F __attribute__((vector_size(16)));
  typedef std::int32_t I __attribute__((vector_size(16)));
  typedef std::uint32_t U __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
#if defined(__aarch64__)
  static constexpr int kRows = 8;  // 32 registers
#else
  static constexpr int kRows = 4;
#endif
  static constexpr int kUnroll = 4;  // vectors one attention head accumulates side by side

  static F zero() { return F{0, 0, 0, 0}; }
  static F load(const float* p) {
    F v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static void store(float* p, F v) { __builtin_memcpy(p, &v, sizeof v); }
  static F set(float v) { return F{v, v, v, v}; }
  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
#if defined(__aarch64__)
  static F fma(F a, F b, F c) {
    return reinterpret_cast<F>(vfmaq_f32(reinterpret_cast<float32x4_t>(c), reinterpret_cast<float32x4_t>(a),
                                         reinterpret_cast<float32x4_t>(b)));
  }
#else
  static F fma(F a, F b, F c) { return a * b + c; }  // two roundings, always: the unit is compiled without contraction
#endif
  static F choose(I mask, F yes, F no) {
    return reinterpret_cast<F>((mask & reinterpret_cast<I>(yes)) | (~mask & reinterpret_cast<I>(no)));
  }
  // As in SSE, the second operand is the result when either is NaN.
  static F max(F a, F b) { return choose(a > b, a, b); }
  static F min(F a, F b) { return choose(a < b, a, b); }
  static F zero_where_less(F v, F x, F bound) { return choose(x < bound, zero(), v); }
  // 2^n from the bits of (1.5 * 2^23 + n).
  static F exp2_of_magic(F t) {
    return reinterpret_cast<F>((reinterpret_cast<U>(t) + (127u - 0x4B400000u)) << 23);
  }
  static F load_f16(const std::uint16_t* p) {
    const U h{p[0], p[1], p[2], p[3]};
    const U magnitude = (h & 0x7FFFu) << 13;
    // Exponents are rebiased by multiplying with 2^112, which also makes the half's subnormals normal.
    U bits = reinterpret_cast<U>(reinterpret_cast<F>(magnitude) * set(0x1p112f));
    const U special = reinterpret_cast<U>((h & 0x7C00u) == 0x7C00u);
    bits = (special & (magnitude | 0x7F800000u)) | (~special & bits);
    return reinterpret_cast<F>(bits | ((h & 0x8000u) << 16));
  }
  static F load_bf16(const std::uint16_t* p) {
    const U h{p[0], p[1], p[2], p[3]};
    return reinterpret_cast<F>(h << 16);
  }
};

}  // namespace
