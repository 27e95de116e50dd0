/// 32-byte vectors with AVX2, FMA and F16C; portable.h explains the names.
#pragma once

#include <immintrin.h>

#include "types.h"

namespace hpcgnn::kernels::avx2 {

struct F32 {
  using Scalar = float;
  static constexpr int kLanes = 8;
  static constexpr int kSumRegisters = 12;
  using Reg = __m256;
  struct Mask {
    __m256i lanes;
    int count;
  };
  using Order = __m256i;

  HPCGNN_INLINE static Order order(const std::int32_t* lanes) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes));
  }
  HPCGNN_INLINE static Reg arrange(Reg r, Order order) {
    return _mm256_permutevar8x32_ps(r, order);
  }

  HPCGNN_INLINE static Mask mask(int lanes) {
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return {_mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), index), lanes};
  }
  HPCGNN_INLINE static void fence() { _mm_sfence(); }
  HPCGNN_INLINE static Reg zero() { return _mm256_setzero_ps(); }
  HPCGNN_INLINE static Reg broadcast(float value) { return _mm256_set1_ps(value); }
  HPCGNN_INLINE static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  HPCGNN_INLINE static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  HPCGNN_INLINE static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  HPCGNN_INLINE static Reg sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  HPCGNN_INLINE static Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
  HPCGNN_INLINE static Reg min(Reg a, Reg b) { return _mm256_min_ps(a, b); }
  HPCGNN_INLINE static Reg choose_less(Reg a, Reg b, Reg x, Reg y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }
  HPCGNN_INLINE static Reg add_exponent(Reg r, Reg n) {
    const __m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(r), shifted));
  }
  HPCGNN_INLINE static float sum(Reg r) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(r), _mm256_extractf128_ps(r, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
  HPCGNN_INLINE static float largest(Reg r) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(r), _mm256_extractf128_ps(r, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }

  HPCGNN_INLINE static Reg load(const float* p) { return _mm256_loadu_ps(p); }
  HPCGNN_INLINE static Reg load(const float* p, Mask m) { return _mm256_maskload_ps(p, m.lanes); }
  HPCGNN_INLINE static void store(float* p, Reg r) { _mm256_storeu_ps(p, r); }
  HPCGNN_INLINE static void stream(float* p, Reg r) { _mm256_stream_ps(p, r); }
  HPCGNN_INLINE static void store(float* p, Reg r, Mask m) { _mm256_maskstore_ps(p, m.lanes, r); }
  HPCGNN_INLINE static Reg load(const std::int32_t* p) {
    return _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  HPCGNN_INLINE static Reg load(const std::int32_t* p, Mask m) {
    return _mm256_cvtepi32_ps(_mm256_maskload_epi32(p, m.lanes));
  }
  HPCGNN_INLINE static void store(std::int8_t* p, Reg r) {
    const __m256i words = _mm256_cvtps_epi32(r);
    const __m128i halves =
        _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(halves, halves));
  }

  template <class S>
  HPCGNN_INLINE static Reg load(const S* p) {
    return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), *p);
  }
  // AVX2 has no masked 16-bit access, so a tail goes through the stack.
  template <class S>
  HPCGNN_INLINE static Reg load(const S* p, Mask m) {
    S lanes[kLanes] = {};
    for (int i = 0; i < m.count; ++i) lanes[i] = p[i];
    return load(lanes);
  }
  template <class S>
  HPCGNN_INLINE static void store(S* p, Reg r) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(r, *p));
  }
  // A register of 16-bit results is half a line, too little to gain from streaming.
  template <class S>
  HPCGNN_INLINE static void stream(S* p, Reg r) {
    store(p, r);
  }
  template <class S>
  HPCGNN_INLINE static void store(S* p, Reg r, Mask m) {
    S lanes[kLanes];
    store(lanes, r);
    for (int i = 0; i < m.count; ++i) p[i] = lanes[i];
  }

 private:
  HPCGNN_INLINE static Reg widen(__m128i bits, const Float16&) { return _mm256_cvtph_ps(bits); }
  HPCGNN_INLINE static Reg widen(__m128i bits, const BFloat16&) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  HPCGNN_INLINE static __m128i narrow(Reg r, const Float16&) {
    return _mm256_cvtps_ph(r, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  HPCGNN_INLINE static __m128i narrow(Reg r, const BFloat16&) {
    const __m256i bits = _mm256_castps_si256(r);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x0040));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(r, r, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(rounded, quiet, is_nan);
    const __m256i packed =
        _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), _MM_SHUFFLE(3, 1, 2, 0));
    return _mm256_castsi256_si128(packed);
  }
};

struct F64 {
  using Scalar = double;
  static constexpr int kLanes = 4;
  static constexpr int kSumRegisters = 12;
  using Reg = __m256d;
  using Mask = __m256i;
  using Order = __m256i;

  HPCGNN_INLINE static Order order(const std::int32_t* lanes) {
    // Lane i as its two halves, 2i and 2i + 1.
    const __m128i low = _mm_slli_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes)), 1);
    const __m256i twice = _mm256_cvtepi32_epi64(low);
    const __m256i next = _mm256_slli_epi64(_mm256_add_epi64(twice, _mm256_set1_epi64x(1)), 32);
    return _mm256_or_si256(twice, next);
  }
  HPCGNN_INLINE static Reg arrange(Reg r, Order order) {
    return _mm256_castps_pd(_mm256_permutevar8x32_ps(_mm256_castpd_ps(r), order));
  }

  HPCGNN_INLINE static Mask mask(int lanes) {
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(lanes), _mm256_setr_epi64x(0, 1, 2, 3));
  }
  HPCGNN_INLINE static void fence() { _mm_sfence(); }
  HPCGNN_INLINE static Reg zero() { return _mm256_setzero_pd(); }
  HPCGNN_INLINE static Reg broadcast(double value) { return _mm256_set1_pd(value); }
  HPCGNN_INLINE static Reg add(Reg a, Reg b) { return _mm256_add_pd(a, b); }
  HPCGNN_INLINE static Reg mul(Reg a, Reg b) { return _mm256_mul_pd(a, b); }
  HPCGNN_INLINE static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_pd(a, b, c); }
  HPCGNN_INLINE static Reg sub(Reg a, Reg b) { return _mm256_sub_pd(a, b); }
  HPCGNN_INLINE static Reg max(Reg a, Reg b) { return _mm256_max_pd(a, b); }
  HPCGNN_INLINE static Reg min(Reg a, Reg b) { return _mm256_min_pd(a, b); }
  HPCGNN_INLINE static Reg choose_less(Reg a, Reg b, Reg x, Reg y) {
    return _mm256_blendv_pd(y, x, _mm256_cmp_pd(a, b, _CMP_LT_OQ));
  }
  HPCGNN_INLINE static Reg add_exponent(Reg r, Reg n) {
    const __m256i shifted = _mm256_slli_epi64(_mm256_castpd_si256(n), 52);
    return _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(r), shifted));
  }
  HPCGNN_INLINE static double sum(Reg r) {
    const __m128d half = _mm_add_pd(_mm256_castpd256_pd128(r), _mm256_extractf128_pd(r, 1));
    return _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
  }
  HPCGNN_INLINE static double largest(Reg r) {
    const __m128d half = _mm_max_pd(_mm256_castpd256_pd128(r), _mm256_extractf128_pd(r, 1));
    return _mm_cvtsd_f64(_mm_max_sd(half, _mm_unpackhi_pd(half, half)));
  }

  HPCGNN_INLINE static Reg load(const double* p) { return _mm256_loadu_pd(p); }
  HPCGNN_INLINE static Reg load(const double* p, Mask m) { return _mm256_maskload_pd(p, m); }
  HPCGNN_INLINE static Reg load(const std::int32_t* p) {
    return _mm256_cvtepi32_pd(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  HPCGNN_INLINE static Reg load(const std::int32_t* p, Mask m) {
    const __m256i low = _mm256_permutevar8x32_epi32(m, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
    return _mm256_cvtepi32_pd(_mm_maskload_epi32(p, _mm256_castsi256_si128(low)));
  }
  HPCGNN_INLINE static void store(double* p, Reg r) { _mm256_storeu_pd(p, r); }
  HPCGNN_INLINE static void stream(double* p, Reg r) { _mm256_stream_pd(p, r); }
  HPCGNN_INLINE static void store(double* p, Reg r, Mask m) { _mm256_maskstore_pd(p, m, r); }
};

}  // namespace hpcgnn::kernels::avx2
