/// Cross entropy of softmaxes, templates over the SIMD types; included once per instruction set.
#pragma once

#include <cmath>

#include "rows/losses.h"
#include "simd/exponential.h"

namespace hpcgnn::kernels {

template <class V>
struct SoftmaxLossKernels {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;

  static constexpr struct alignas(64) Places {
    Scalar at[V::kLanes];
    constexpr Places() : at() {
      for (int lane = 0; lane < V::kLanes; ++lane) at[lane] = static_cast<Scalar>(lane);
    }
  } kPlaces{};

  HPCGNN_INLINE static Reg none() { return V::broadcast(-static_cast<Scalar>(INFINITY)); }

  /// Call `use` with the registers of a row, their first column and whether they are whole; the
  /// last one is filled up with -inf, which does not change a softmax.
  template <class Use>
  HPCGNN_INLINE static void each(const Scalar* row, std::int64_t width, const Use& use) {
    std::int64_t c = 0;
    for (; c + V::kLanes <= width; c += V::kLanes) use(V::load(row + c), c, true);
    if (c == width) return;
    const int left = static_cast<int>(width - c);
    const Reg places = V::load(kPlaces.at), count = V::broadcast(static_cast<Scalar>(left));
    use(V::choose_less(places, count, V::load(row + c, V::mask(left)), none()), c, false);
  }

  static void loss(const SoftmaxLoss& a, std::int64_t first, std::int64_t last) {
    const SoftmaxTargets& t = a.targets;
    const Scalar* const factors = static_cast<const Scalar*>(a.gradient.factors);
    const Scalar smoothing = static_cast<Scalar>(t.smoothing);
    const auto tail = V::mask(static_cast<int>(t.width % V::kLanes));
    for (std::int64_t i = first; i < last; ++i) {
      const Scalar* const row = static_cast<const Scalar*>(t.logits) + i * t.width;
      Scalar* const out = static_cast<Scalar*>(a.gradient.out);
      Scalar* const target_row = out == nullptr ? nullptr : out + i * t.width;
      const auto write = [&](Reg value, std::int64_t c, bool whole) {
        if (whole)
          V::store(target_row + c, value);
        else
          V::store(target_row + c, value, tail);
      };
      Reg largest = none();
      each(row, t.width, [&](Reg x, std::int64_t, bool) { largest = V::max(x, largest); });
      const Scalar top = V::largest(largest);
      const Reg shift = V::broadcast(top);
      Reg sum = V::zero();
      each(row, t.width, [&](Reg x, std::int64_t c, bool whole) {
        const Reg power = exponential<V>(V::sub(x, shift));
        sum = V::add(sum, power);
        if (target_row != nullptr) write(power, c, whole);
      });
      const Scalar total = V::sum(sum);
      const std::int64_t label = t.labels[i];
      // Not top + log(total) - logit: if the logit is the largest, the loss is far smaller.
      Scalar target = row[label] - top;
      if (smoothing > 0) {
        Scalar mean = 0;
        for (std::int64_t c = 0; c < t.width; ++c) mean += row[c] - top;
        target = (1 - smoothing) * target + smoothing * mean / static_cast<Scalar>(t.width);
      }
      static_cast<Scalar*>(a.losses)[i] = std::log(total) - target;
      if (target_row == nullptr) continue;
      const Scalar factor =
          static_cast<Scalar>(a.gradient.scale) * (factors == nullptr ? 1 : factors[i]);
      const Scalar share = static_cast<Scalar>(t.smoothing / static_cast<double>(t.width));
      const Reg norm = V::broadcast(factor / total), common = V::broadcast(-factor * share);
      each(target_row, t.width, [&](Reg power, std::int64_t c, bool whole) {
        write(V::fma(power, norm, common), c, whole);
      });
      target_row[label] -= factor * (1 - smoothing);
    }
  }
};

}  // namespace hpcgnn::kernels
