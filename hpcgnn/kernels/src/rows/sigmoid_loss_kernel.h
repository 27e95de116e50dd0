/// Cross entropy of sigmoids, templates over the SIMD types; included once per instruction set.
#pragma once

#include <algorithm>
#include <cmath>

#include "rows/losses.h"
#include "rows/places.h"
#include "simd/exponential.h"

namespace hpcgnn::kernels {

template <class V>
struct SigmoidLossKernels {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;

  /// exp(-|x|), which never overflows.
  HPCGNN_INLINE static Reg decay(Reg x) { return exponential<V>(V::min(x, V::sub(V::zero(), x))); }

  /// 1 / (1 + u) for u in [0, 1], within a few units in the last place, by Newton's iteration.
  HPCGNN_INLINE static Reg inverse_above(Reg u) {
    const Reg two = V::broadcast(2), minus = V::sub(V::zero(), V::add(V::broadcast(1), u));
    // The best linear approximation of the inverse between 1 and 2, at most 1/17 of it away.
    Reg found = V::fma(minus, V::broadcast(Scalar(8.0 / 17)), V::broadcast(Scalar(24.0 / 17)));
    constexpr int kSteps = sizeof(Scalar) == 4 ? 3 : 4;
    for (int step = 0; step < kSteps; ++step) found = V::mul(found, V::fma(minus, found, two));
    return found;
  }

  /// The losses of a row: large log(1 + u) by the logarithm of a product, small ones by a series.
  class Sum {
   public:
    /// Add the loss of x, whose decay is u.
    HPCGNN_INLINE void add(Reg x, Reg u, Reg target) {
      const Reg one = V::broadcast(1), limit = V::broadcast(kSmall);
      Reg series = V::broadcast(Scalar(1) / 5);
      for (int k = 4; k >= 1; --k)
        series = V::fma(series, V::sub(V::zero(), u), V::broadcast(Scalar(1) / Scalar(k)));
      const Reg small = V::choose_less(u, limit, V::mul(series, u), V::zero());
      product_ = V::mul(product_, V::choose_less(u, limit, one, V::add(one, u)));
      const Reg linear = V::sub(V::max(x, V::zero()), V::mul(target, x));
      sum_ = V::add(sum_, V::add(linear, small));
      if (++terms_ == kMostTerms) {
        logarithm_ += std::log(product());
        product_ = V::broadcast(1);
        terms_ = 0;
      }
    }

    /// All but the logarithm of `product`.
    HPCGNN_INLINE Scalar sum() const { return V::sum(sum_) + static_cast<Scalar>(logarithm_); }

    /// The product of the lanes.
    HPCGNN_INLINE double product() const {
      alignas(64) Scalar lanes[V::kLanes];
      V::store(lanes, product_);
      double all[2] = {1, 1};
      for (int lane = 0; lane < V::kLanes; ++lane)
        all[lane % 2] *= static_cast<double>(lanes[lane]);
      return all[0] * all[1];
    }

   private:
    // No factor is above 2: neither a lane nor the product of all lanes, in float64, overflows.
    static constexpr int kMostTerms = 60;
    // Below this the series is exact; above, the rounding error of 1 + u is far below log(1 + u).
    static constexpr Scalar kSmall = sizeof(Scalar) == 4 ? Scalar(0x1p-4) : Scalar(0x1p-12);

    Reg product_ = V::broadcast(1), sum_ = V::zero();
    double logarithm_ = 0;
    int terms_ = 0;
  };

  /// sigmoid(x) - target, for x whose decay is u.
  HPCGNN_INLINE static Reg slope(Reg x, Reg u, Reg target) {
    const Reg above = V::choose_less(x, V::zero(), u, V::broadcast(1));
    return V::sub(V::mul(above, inverse_above(u)), target);
  }

  static void loss(const SigmoidLoss& a, std::int64_t first, std::int64_t last) {
    if (a.gradient.out == nullptr)
      rows<false>(a, first, last);
    else
      rows<true>(a, first, last);
  }

  /// Rows whose logarithms are computed together: a call of `log` would displace the constants of
  /// the exponential from registers.
  static constexpr int kRows = 16;

  template <bool kGradient>
  static void rows(const SigmoidLoss& a, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; i += kRows)
      some<kGradient>(a, i, static_cast<int>(std::min<std::int64_t>(kRows, last - i)));
  }

  template <bool kGradient>
  static void some(const SigmoidLoss& a, std::int64_t first, int count) {
    const SigmoidTargets& t = a.targets;
    const Scalar* const factors = static_cast<const Scalar*>(a.gradient.factors);
    Scalar* const losses = static_cast<Scalar*>(a.losses) + first;
    double products[kRows];
    for (int r = 0; r < count; ++r) {
      const std::int64_t start = (first + r) * t.width;
      const Scalar* const row = static_cast<const Scalar*>(t.logits) + start;
      const Scalar* const target = static_cast<const Scalar*>(t.targets) + start;
      Scalar* const out = kGradient ? static_cast<Scalar*>(a.gradient.out) + start : nullptr;
      const Reg factor = V::broadcast(static_cast<Scalar>(a.gradient.scale) *
                                      (factors == nullptr ? 1 : factors[first + r]));
      Sum sum;
      std::int64_t c = 0;
      for (; c + V::kLanes <= t.width; c += V::kLanes) {
        const Reg x = V::load(row + c), u = decay(x), wanted = V::load(target + c);
        sum.add(x, u, wanted);
        if constexpr (kGradient) V::store(out + c, V::mul(factor, slope(x, u, wanted)));
      }
      if (c < t.width) {
        // Lanes behind the row add nothing: their sigmoids underflow to zero, their target.
        const Reg end = V::broadcast(static_cast<Scalar>(t.width - c)), none = V::broadcast(-1e30f);
        const auto tail = V::mask(static_cast<int>(t.width - c));
        const Reg x = V::choose_less(V::load(kPlaces<V>.at), end, V::load(row + c, tail), none);
        const Reg u = decay(x), wanted = V::load(target + c, tail);
        sum.add(x, u, wanted);
        if constexpr (kGradient) V::store(out + c, V::mul(factor, slope(x, u, wanted)), tail);
      }
      losses[r] = sum.sum();
      products[r] = sum.product();
    }
    for (int r = 0; r < count; ++r) losses[r] += static_cast<Scalar>(std::log(products[r]));
  }
};

}  // namespace hpcgnn::kernels
