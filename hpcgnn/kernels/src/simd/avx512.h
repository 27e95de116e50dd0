/// 64-byte vectors with AVX-512 F, BW, VL and DQ; portable.h explains the names.
#pragma once

#include <immintrin.h>

#include "types.h"

namespace hpcgnn::kernels::avx512 {

struct F32 {
  using Scalar = float;
  static constexpr int kLanes = 16;
  static constexpr int kSumRegisters = 16;
  using Reg = __m512;
  using Mask = __mmask16;
  using Order = __m512i;

  HPCGNN_INLINE static Order order(const std::int32_t* lanes) { return _mm512_loadu_si512(lanes); }
  HPCGNN_INLINE static Reg arrange(Reg r, Order order) { return _mm512_permutexvar_ps(order, r); }

  HPCGNN_INLINE static Mask mask(int lanes) { return static_cast<Mask>((1u << lanes) - 1u); }
  HPCGNN_INLINE static void fence() { _mm_sfence(); }
  HPCGNN_INLINE static Reg zero() { return _mm512_setzero_ps(); }
  HPCGNN_INLINE static Reg broadcast(float value) { return _mm512_set1_ps(value); }
  HPCGNN_INLINE static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  HPCGNN_INLINE static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  HPCGNN_INLINE static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  HPCGNN_INLINE static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  HPCGNN_INLINE static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  HPCGNN_INLINE static Reg min(Reg a, Reg b) { return _mm512_min_ps(a, b); }
  HPCGNN_INLINE static Reg choose_less(Reg a, Reg b, Reg x, Reg y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
  }
  HPCGNN_INLINE static Reg add_exponent(Reg r, Reg n) {
    const __m512i shifted = _mm512_slli_epi32(_mm512_castps_si512(n), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(r), shifted));
  }
  HPCGNN_INLINE static Scalar sum(Reg r) { return _mm512_reduce_add_ps(r); }
  HPCGNN_INLINE static Scalar largest(Reg r) { return _mm512_reduce_max_ps(r); }

  HPCGNN_INLINE static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  HPCGNN_INLINE static Reg load(const float* p, Mask m) { return _mm512_maskz_loadu_ps(m, p); }
  HPCGNN_INLINE static void store(float* p, Reg r) { _mm512_storeu_ps(p, r); }
  HPCGNN_INLINE static void stream(float* p, Reg r) { _mm512_stream_ps(p, r); }
  HPCGNN_INLINE static void store(float* p, Reg r, Mask m) { _mm512_mask_storeu_ps(p, m, r); }
  HPCGNN_INLINE static Reg load(const std::int32_t* p) {
    return _mm512_cvtepi32_ps(_mm512_loadu_si512(p));
  }
  HPCGNN_INLINE static Reg load(const std::int32_t* p, Mask m) {
    return _mm512_cvtepi32_ps(_mm512_maskz_loadu_epi32(m, p));
  }
  HPCGNN_INLINE static void store(std::int8_t* p, Reg r) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(r)));
  }
  HPCGNN_INLINE static void store(std::int8_t* p, Reg r, Mask m) {
    _mm512_mask_cvtepi32_storeu_epi8(p, m, _mm512_cvtps_epi32(r));
  }

  template <class S>
  HPCGNN_INLINE static Reg load(const S* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), *p);
  }
  template <class S>
  HPCGNN_INLINE static Reg load(const S* p, Mask m) {
    return widen(_mm256_maskz_loadu_epi16(m, p), *p);
  }
  template <class S>
  HPCGNN_INLINE static void store(S* p, Reg r) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(r, *p));
  }
  // A register of 16-bit results is half a line, too little to gain from streaming.
  template <class S>
  HPCGNN_INLINE static void stream(S* p, Reg r) {
    store(p, r);
  }
  template <class S>
  HPCGNN_INLINE static void store(S* p, Reg r, Mask m) {
    _mm256_mask_storeu_epi16(p, m, narrow(r, *p));
  }

 private:
  HPCGNN_INLINE static Reg widen(__m256i bits, const Float16&) { return _mm512_cvtph_ps(bits); }
  HPCGNN_INLINE static Reg widen(__m256i bits, const BFloat16&) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  HPCGNN_INLINE static __m256i narrow(Reg r, const Float16&) {
    return _mm512_cvtps_ph(r, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  HPCGNN_INLINE static __m256i narrow(Reg r, const BFloat16&) {
    const __m512i bits = _mm512_castps_si512(r);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(r, r, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(
        _mm512_mask_or_epi32(rounded, is_nan, high, _mm512_set1_epi32(0x0040)));
  }
};

struct F64 {
  using Scalar = double;
  static constexpr int kLanes = 8;
  static constexpr int kSumRegisters = 16;
  using Reg = __m512d;
  using Mask = __mmask8;
  using Order = __m512i;

  HPCGNN_INLINE static Order order(const std::int32_t* lanes) {
    return _mm512_cvtepi32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes)));
  }
  HPCGNN_INLINE static Reg arrange(Reg r, Order order) { return _mm512_permutexvar_pd(order, r); }

  HPCGNN_INLINE static Mask mask(int lanes) { return static_cast<Mask>((1u << lanes) - 1u); }
  HPCGNN_INLINE static void fence() { _mm_sfence(); }
  HPCGNN_INLINE static Reg zero() { return _mm512_setzero_pd(); }
  HPCGNN_INLINE static Reg broadcast(double value) { return _mm512_set1_pd(value); }
  HPCGNN_INLINE static Reg add(Reg a, Reg b) { return _mm512_add_pd(a, b); }
  HPCGNN_INLINE static Reg mul(Reg a, Reg b) { return _mm512_mul_pd(a, b); }
  HPCGNN_INLINE static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_pd(a, b, c); }
  HPCGNN_INLINE static Reg sub(Reg a, Reg b) { return _mm512_sub_pd(a, b); }
  HPCGNN_INLINE static Reg max(Reg a, Reg b) { return _mm512_max_pd(a, b); }
  HPCGNN_INLINE static Reg min(Reg a, Reg b) { return _mm512_min_pd(a, b); }
  HPCGNN_INLINE static Reg choose_less(Reg a, Reg b, Reg x, Reg y) {
    return _mm512_mask_blend_pd(_mm512_cmp_pd_mask(a, b, _CMP_LT_OQ), y, x);
  }
  HPCGNN_INLINE static Reg add_exponent(Reg r, Reg n) {
    const __m512i shifted = _mm512_slli_epi64(_mm512_castpd_si512(n), 52);
    return _mm512_castsi512_pd(_mm512_add_epi64(_mm512_castpd_si512(r), shifted));
  }
  HPCGNN_INLINE static Scalar sum(Reg r) { return _mm512_reduce_add_pd(r); }
  HPCGNN_INLINE static Scalar largest(Reg r) { return _mm512_reduce_max_pd(r); }

  HPCGNN_INLINE static Reg load(const double* p) { return _mm512_loadu_pd(p); }
  HPCGNN_INLINE static Reg load(const double* p, Mask m) { return _mm512_maskz_loadu_pd(m, p); }
  HPCGNN_INLINE static Reg load(const std::int32_t* p) {
    return _mm512_cvtepi32_pd(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  HPCGNN_INLINE static Reg load(const std::int32_t* p, Mask m) {
    return _mm512_cvtepi32_pd(_mm256_maskz_loadu_epi32(m, p));
  }
  HPCGNN_INLINE static void store(double* p, Reg r) { _mm512_storeu_pd(p, r); }
  HPCGNN_INLINE static void stream(double* p, Reg r) { _mm512_stream_pd(p, r); }
  HPCGNN_INLINE static void store(double* p, Reg r, Mask m) { _mm512_mask_storeu_pd(p, m, r); }
};

}  // namespace hpcgnn::kernels::avx512
