// Numbers the acceptance rule is written in: logits of three formats, ordered keys, fixed-point weights, random bits.
//
// Everything here is integer arithmetic or single IEEE-754 operations rounded to nearest, never fused, so the host and
// the device compute the same bits. No includes: NVRTC, nvcc and the host compiler all take this file as it is.
#pragma once

// The host build compiles the rule once per instruction set, each in a namespace of its own: were the namespaces the
// same, the linker would be free to keep the AVX-512 copy of an inline function for everyone.
#ifndef TL_NAMESPACE
#define TL_NAMESPACE trtlookup
#endif

#if defined(__CUDACC__) || defined(TL_EMULATED)
#define TL_FN __device__ __forceinline__
#else
#define TL_FN inline __attribute__((always_inline))
#endif

namespace TL_NAMESPACE {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

#if defined(__CUDA_ARCH__)
TL_FN u32 bits_of(float x) { return __float_as_uint(x); }
TL_FN float float_of(u32 bits) { return __uint_as_float(bits); }
TL_FN float add(float a, float b) { return __fadd_rn(a, b); }
TL_FN float mul(float a, float b) { return __fmul_rn(a, b); }
TL_FN float div(float a, float b) { return __fdiv_rn(a, b); }
TL_FN u64 mul_high(u64 a, u64 b) { return __umul64hi(a, b); }
#else
// Compiled with -ffp-contract=off.
TL_FN u32 bits_of(float x) { return __builtin_bit_cast(u32, x); }
TL_FN float float_of(u32 bits) { return __builtin_bit_cast(float, bits); }
TL_FN float add(float a, float b) { return a + b; }
TL_FN float mul(float a, float b) { return a * b; }
TL_FN float div(float a, float b) { return a / b; }
TL_FN u64 mul_high(u64 a, u64 b) { return static_cast<u64>((static_cast<unsigned __int128>(a) * b) >> 64); }
#endif

// ---------------------------------------------------------------------------------------------- logits

struct Half {
  u16 bits;
};
struct Bfloat16 {
  u16 bits;
};

TL_FN float to_float(float x) { return x; }
TL_FN float to_float(Bfloat16 x) { return float_of(static_cast<u32>(x.bits) << 16); }
TL_FN float to_float(Half x) {
#if defined(__CUDA_ARCH__)
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
#else
  // Moving exponent and fraction into place leaves a value 2^112 too small, subnormals included; the product is exact.
  const u32 magnitude = static_cast<u32>(x.bits & 0x7fffu) << 13;
  const u32 finite = bits_of(float_of(magnitude) * 0x1p112f);
  const u32 special = static_cast<int>(magnitude) >= (0x7c00 << 13) ? 0x7f800000u : 0u;  // infinity and NaN
  return float_of(finite | special | (static_cast<u32>(x.bits & 0x8000u) << 16));
#endif
}

TL_FN bool is_nan(float x) { return (bits_of(x) & 0x7fffffffu) > 0x7f800000u; }
TL_FN float minus_infinity() { return float_of(0xff800000u); }

// Keys order as logits do: key(a) < key(b) iff a < b. The two zeros share a key; NaN is above everything, so that a
// maximum reports it.
constexpr u32 kNanKey = 0xffffffffu;
constexpr u32 kMinusInfinityKey = 0x007fffffu;

TL_FN u32 key_of(float x) {
  const u32 bits = bits_of(add(x, 0.0f));  // -0 + 0 is +0
  const u32 key = bits ^ ((bits >> 31) ? 0xffffffffu : 0x80000000u);
  return is_nan(x) ? kNanKey : key;
}
TL_FN float logit_of(u32 key) { return float_of(key ^ ((key >> 31) ? 0x80000000u : 0xffffffffu)); }

// A row's best token as one number: the maximum over tokens has the highest logit and, on a tie, the lowest token.
TL_FN u64 candidate(u32 key, int token) { return (static_cast<u64>(key) << 32) | (0xffffffffu - static_cast<u32>(token)); }
TL_FN u32 candidate_key(u64 best) { return static_cast<u32>(best >> 32); }
TL_FN int candidate_token(u64 best) { return static_cast<int>(0xffffffffu - static_cast<u32>(best)); }
TL_FN bool is_choosable(u64 best) { return candidate_key(best) != kNanKey && candidate_key(best) > kMinusInfinityKey; }

// ---------------------------------------------------------------------------------------------- weights

// floor(2^32 * e^d) for d <= 0, to about 2^-22 of itself; 0 from d = -23 down (there the true value is below 0.5).
// Argument reduction by ln 2 in two parts (the first has few enough bits that its product with k is exact), then e^r
// for |r| <= 0.35 by its series to r^7.
TL_FN u64 weight_of(float d) {
  const float x = d > -23.0f ? d : -23.0f;
  const float k = add(add(mul(x, 1.44269504f), 12582912.0f), -12582912.0f);  // nearest whole number
  const float r = add(add(x, -mul(k, 0.693359375f)), -mul(k, -2.12194440e-4f));
  float p = 1.98412698e-4f;
  p = add(mul(p, r), 1.38888889e-3f);
  p = add(mul(p, r), 8.33333333e-3f);
  p = add(mul(p, r), 4.16666667e-2f);
  p = add(mul(p, r), 1.66666667e-1f);
  p = add(mul(p, r), 0.5f);
  p = add(mul(p, r), 1.0f);
  p = add(mul(p, r), 1.0f);
  const int scaled = d > -23.0f ? static_cast<int>(mul(p, 1073741824.0f)) : 0;
  return (static_cast<u64>(scaled) << 2) >> static_cast<u64>(static_cast<int>(-k));
}

// The weight of a logit at a temperature, relative to the row's highest logit, which weighs 2^32.
TL_FN u64 weight_at(float x, float highest, float temperature) {
  return weight_of(x == highest ? 0.0f : div(add(x, -highest), temperature));
}

// A share of at most 1 in 32-bit fixed point.
TL_FN u64 fixed_share(float share) { return static_cast<u64>(mul(share, 4294967296.0f)); }

// floor(total * share / 2^32), for totals up to 2^63.
TL_FN u64 portion(u64 total, u64 share) { return (total >> 32) * share + (((total & 0xffffffffu) * share) >> 32); }

// ---------------------------------------------------------------------------------------------- random bits

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; 2011), counter
// (position, 0), key seed: the first 64 bits of its output.
TL_FN u64 random_bits(u64 seed, u64 position) {
  u32 c0 = static_cast<u32>(position), c1 = static_cast<u32>(position >> 32), c2 = 0, c3 = 0;
  u32 k0 = static_cast<u32>(seed), k1 = static_cast<u32>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const u64 a = static_cast<u64>(0xD2511F53u) * c0;
    const u64 b = static_cast<u64>(0xCD9E8D57u) * c2;
    c0 = static_cast<u32>(b >> 32) ^ c1 ^ k0;
    c2 = static_cast<u32>(a >> 32) ^ c3 ^ k1;
    c1 = static_cast<u32>(b);
    c3 = static_cast<u32>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0 | (static_cast<u64>(c1) << 32);
}

}  // namespace TL_NAMESPACE
