/// 16-byte vectors in plain C++: compilers lower them to SSE2, NEON or scalar code.
///
/// Every SIMD type offers the same names: `Scalar` (the accumulator type), `kLanes`,
/// `kSumRegisters` (sums that a product keeps beside its operands), `Reg`, `Mask`, and static
/// functions; kernels are templates over it. A masked load reads only the first lanes and sets the
/// others to zero; a masked store does not write the others. `stream` bypasses the cache where the
/// machine can and needs the alignment of a register; `fence` orders such stores. `max(a, b)` and
/// `min(a, b)` give b where either is NaN; `choose_less(a, b, x, y)` is x where a < b, else y;
/// storing 8-bit integers rounds to nearest; `add_exponent(r, n)` adds the last bits of n to the
/// exponent of r; lane k of `arrange(r, order(lanes))` is lane lanes[k] of r.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __aarch64__
#include <arm_neon.h>
#endif

#include "simd/half.h"
#include "types.h"

namespace hpcgnn::kernels::portable {

template <class T>
struct Vector {
  using Scalar = T;
  static constexpr int kLanes = 16 / static_cast<int>(sizeof(T));
  // 64-bit Arm has twice the vector registers of baseline x86.
#ifdef __aarch64__
  static constexpr int kSumRegisters = 16;
#else
  static constexpr int kSumRegisters = 8;
#endif
  typedef T Reg __attribute__((vector_size(16)));
  using Mask = int;
  struct Order {
    std::int32_t lanes[kLanes];
  };

  HPCGNN_INLINE static Order order(const std::int32_t* lanes) {
    Order result;
    std::memcpy(result.lanes, lanes, sizeof result.lanes);
    return result;
  }
  HPCGNN_INLINE static Reg arrange(Reg r, const Order& order) {
    Reg result;
    for (int i = 0; i < kLanes; ++i) result[i] = r[order.lanes[i]];
    return result;
  }

  HPCGNN_INLINE static Mask mask(int lanes) { return lanes; }
  HPCGNN_INLINE static Reg zero() { return Reg{}; }
  HPCGNN_INLINE static Reg broadcast(T value) { return Reg{} + value; }
  HPCGNN_INLINE static Reg add(Reg a, Reg b) { return a + b; }
  HPCGNN_INLINE static Reg mul(Reg a, Reg b) { return a * b; }
  HPCGNN_INLINE static Reg fma(Reg a, Reg b, Reg c) {
#ifdef __aarch64__
    // Fused only here: see portable_options in CMakeLists.txt.
    if constexpr (sizeof(T) == 4)
      return vfmaq_f32(c, a, b);
    else
      return vfmaq_f64(c, a, b);
#else
    return a * b + c;
#endif
  }
  HPCGNN_INLINE static Reg sub(Reg a, Reg b) { return a - b; }
  HPCGNN_INLINE static Reg max(Reg a, Reg b) { return a > b ? a : b; }
  HPCGNN_INLINE static Reg min(Reg a, Reg b) { return a < b ? a : b; }
  HPCGNN_INLINE static Reg choose_less(Reg a, Reg b, Reg x, Reg y) { return a < b ? x : y; }
  HPCGNN_INLINE static Reg add_exponent(Reg r, Reg n) {
    constexpr int kMantissa = sizeof(T) == 4 ? 23 : 52;
    return reinterpret_cast<Reg>(reinterpret_cast<Bits>(r) +
                                 (reinterpret_cast<Bits>(n) << kMantissa));
  }
  HPCGNN_INLINE static T sum(Reg r) {
    T result = r[0];
    for (int i = 1; i < kLanes; ++i) result += r[i];
    return result;
  }
  HPCGNN_INLINE static T largest(Reg r) {
    T result = r[0];
    for (int i = 1; i < kLanes; ++i) result = r[i] > result ? r[i] : result;
    return result;
  }

  template <class S>
  HPCGNN_INLINE static Reg load(const S* p) {
    Reg r;
    if constexpr (std::is_same_v<S, T>) {
      std::memcpy(&r, p, sizeof r);
    } else {
      for (int i = 0; i < kLanes; ++i) r[i] = half::widen<T>(p[i]);
    }
    return r;
  }
  template <class S>
  HPCGNN_INLINE static Reg load(const S* p, Mask lanes) {
    Reg r{};
    for (int i = 0; i < lanes; ++i) r[i] = half::widen<T>(p[i]);
    return r;
  }
  template <class S>
  HPCGNN_INLINE static void store(S* p, Reg r) {
    if constexpr (std::is_same_v<S, T>) {
      std::memcpy(p, &r, sizeof r);
    } else {
      store(p, r, kLanes);
    }
  }
  template <class S>
  HPCGNN_INLINE static void stream(S* p, Reg r) {
    store(p, r);
  }
  HPCGNN_INLINE static void fence() {}
  template <class S>
  HPCGNN_INLINE static void store(S* p, Reg r, Mask lanes) {
    for (int i = 0; i < lanes; ++i) half::narrow(r[i], p[i]);
  }

 private:
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  typedef Word Bits __attribute__((vector_size(16)));
};

using F32 = Vector<float>;
using F64 = Vector<double>;

}  // namespace hpcgnn::kernels::portable
