/// exp of a vector, a template over the SIMD types.
#pragma once

#include "types.h"

namespace hpcgnn::kernels {

/// exp(x) within 2 units in the last place; 0 where the result would be subnormal, so exp(-inf) is
/// exactly 0. Finite up to the largest argument that has a finite result; NaN stays NaN.
///
/// x = n log 2 + r with |r| <= log(2) / 2; the Taylor series of exp(r) is cut where its next term
/// is below half a unit in the last place, and n is added to the exponent.
template <class V>
HPCGNN_INLINE typename V::Reg exponential(typename V::Reg x) {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;
  constexpr bool kSingle = sizeof(Scalar) == 4;
  constexpr int kDegree = kSingle ? 7 : 13;
  constexpr Scalar kLowest = kSingle ? Scalar(-87.33) : Scalar(-708.39);
  constexpr Scalar kHighest = kSingle ? Scalar(88.02) : Scalar(709.08);
  // Adding it leaves n in the last bits; subtracting it again rounds to a whole number.
  constexpr Scalar kRound = kSingle ? Scalar(0x1.8p23) : Scalar(0x1.8p52);
  // log 2 in two parts: n times the first is exact.
  constexpr Scalar kLog2High = kSingle ? Scalar(0x1.62cp-1) : Scalar(0x1.62e42feep-1);
  constexpr Scalar kLog2Low =
      kSingle ? Scalar(0x1.217f7d1cf79acp-12) : Scalar(0x1.a39ef35793c76p-33);

  const Reg lowest = V::broadcast(kLowest);
  const Reg clamped = V::min(V::broadcast(kHighest), V::max(lowest, x));
  const Reg last_bits =
      V::fma(clamped, V::broadcast(Scalar(0x1.71547652b82fep0)), V::broadcast(kRound));
  const Reg n = V::sub(last_bits, V::broadcast(kRound));
  const Reg r = V::fma(n, V::broadcast(-kLog2Low), V::fma(n, V::broadcast(-kLog2High), clamped));
  constexpr auto kInverse = [](int k) {
    double factorial = 1;
    for (int i = 2; i <= k; ++i) factorial *= i;
    return static_cast<Scalar>(1 / factorial);
  };
  Reg series = V::broadcast(kInverse(kDegree));
  for (int k = kDegree - 1; k >= 0; --k) series = V::fma(series, r, V::broadcast(kInverse(k)));
  return V::choose_less(x, lowest, V::zero(), V::add_exponent(series, last_bits));
}

/// exp(x) of one number.
template <class V>
HPCGNN_INLINE typename V::Scalar exponential_of(typename V::Scalar x) {
  typename V::Scalar lanes[V::kLanes];
  V::store(lanes, exponential<V>(V::broadcast(x)));
  return lanes[0];
}

}  // namespace hpcgnn::kernels
