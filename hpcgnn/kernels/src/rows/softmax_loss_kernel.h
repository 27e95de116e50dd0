/// Cross entropy of softmaxes, templates over the SIMD types; included once per instruction set.
#pragma once

#include <algorithm>
#include <cmath>

#include "rows/losses.h"
#include "rows/places.h"
#include "simd/exponential.h"

namespace hpcgnn::kernels {

template <class V>
struct SoftmaxLossKernels {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;

  HPCGNN_INLINE static Reg none() { return V::broadcast(-static_cast<Scalar>(INFINITY)); }

  /// Call `use` with the registers of a row, their first column and whether they are whole; the
  /// last one is filled up with -inf, which does not change a softmax.
  template <class Use>
  HPCGNN_INLINE static void each(const Scalar* row, std::int64_t width, const Use& use) {
    std::int64_t c = 0;
    for (; c + V::kLanes <= width; c += V::kLanes) use(V::load(row + c), c, true);
    if (c == width) return;
    const int left = static_cast<int>(width - c);
    const Reg places = V::load(kPlaces<V>.at), count = V::broadcast(static_cast<Scalar>(left));
    use(V::choose_less(places, count, V::load(row + c, V::mask(left)), none()), c, false);
  }

  /// Rows whose logarithms are computed together: a call of `log` would displace the constants of
  /// the exponential from registers.
  static constexpr int kRows = 16;

  static void loss(const SoftmaxLoss& a, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; i += kRows)
      some(a, i, static_cast<int>(std::min<std::int64_t>(kRows, last - i)));
  }

  static void some(const SoftmaxLoss& a, std::int64_t first, int count) {
    const SoftmaxTargets& t = a.targets;
    const Scalar* const logits = static_cast<const Scalar*>(t.logits) + first * t.width;
    Scalar* const out =
        a.gradient.out ? static_cast<Scalar*>(a.gradient.out) + first * t.width : nullptr;
    const Scalar* const factors = static_cast<const Scalar*>(a.gradient.factors);
    const Scalar smoothing = static_cast<Scalar>(t.smoothing);
    const Scalar share = static_cast<Scalar>(t.smoothing / static_cast<double>(t.width));
    const std::int64_t whole_columns = t.width / V::kLanes * V::kLanes;
    const auto tail = V::mask(static_cast<int>(t.width - whole_columns));
    Scalar tops[kRows], totals[kRows], weights[kRows];
    for (int r = 0; r < count; ++r) {
      const Scalar* const row = logits + r * t.width;
      Scalar* const target_row = out ? out + r * t.width : nullptr;
      Reg largest = none(), sum = V::zero(), last = V::zero();
      each(row, t.width, [&](Reg x, std::int64_t, bool) { largest = V::max(x, largest); });
      tops[r] = V::largest(largest);
      const Reg shift = V::broadcast(tops[r]);
      each(row, t.width, [&](Reg x, std::int64_t c, bool whole) {
        const Reg power = exponential<V>(V::sub(x, shift));
        sum = V::add(sum, power);
        // What a masked store has written cannot be forwarded to a load.
        if (!whole)
          last = power;
        else if (out)
          V::store(target_row + c, power);
      });
      totals[r] = V::sum(sum);
      weights[r] = static_cast<Scalar>(a.gradient.scale) * (factors ? factors[first + r] : 1);
      if (!out) continue;
      const Reg norm = V::broadcast(weights[r] / totals[r]);
      const Reg common = V::broadcast(-weights[r] * share);
      for (std::int64_t c = 0; c < whole_columns; c += V::kLanes)
        V::store(target_row + c, V::fma(V::load(target_row + c), norm, common));
      if (whole_columns < t.width)
        V::store(target_row + whole_columns, V::fma(last, norm, common), tail);
    }
    for (int r = 0; r < count; ++r) {
      const Scalar* const row = logits + r * t.width;
      const std::int64_t label = t.labels[first + r];
      // Not top + log(total) - logit: if the logit is the largest, the loss is far smaller.
      Scalar target = row[label] - tops[r];
      if (smoothing > 0) {
        Scalar mean = 0;
        for (std::int64_t c = 0; c < t.width; ++c) mean += row[c] - tops[r];
        target = (1 - smoothing) * target + smoothing * mean / static_cast<Scalar>(t.width);
      }
      static_cast<Scalar*>(a.losses)[first + r] = std::log(totals[r]) - target;
      if (out) out[r * t.width + label] -= weights[r] * (1 - smoothing);
    }
  }
};

}  // namespace hpcgnn::kernels
