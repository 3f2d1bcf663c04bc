// Vectors of sixteen floats (AVX-512 F/BW/DQ/VL). Included by one translation unit only.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace {

struct Simd {
  using F = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kRows = 12;    // rows of one register tile: 12 x 2 accumulators of 32 registers
  static constexpr int kUnroll = 4;   // vectors one attention head accumulates side by side

  static F zero() { return _mm512_setzero_ps(); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F set(float v) { return _mm512_set1_ps(v); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  // As in SSE, the second operand is the result when either is NaN.
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F zero_where_less(F v, F x, F bound) {  // x < bound ? 0 : v; a NaN x keeps v
    return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(x, bound, _CMP_LT_OQ), _mm512_setzero_ps());
  }
  // 2^n from the bits of (1.5 * 2^23 + n).
  static F exp2_of_magic(F t) {
    const __m512i n = _mm512_add_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(127 - 0x4B400000));
    return _mm512_castsi512_ps(_mm512_slli_epi32(n, 23));
  }
  static F load_f16(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_bf16(const std::uint16_t* p) {
    const __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
  }
};

}  // namespace
