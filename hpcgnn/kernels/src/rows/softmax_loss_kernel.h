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

  /// The registers of a row, the last one filled up with -inf, which no softmax sees.
  template <class Use>
  HPCGNN_INLINE static void each(const Scalar* row, std::int64_t width, const Use& use) {
    std::int64_t c = 0;
    for (; c + V::kLanes <= width; c += V::kLanes) use(V::load(row + c));
    if (c == width) return;
    const int left = static_cast<int>(width - c);
    const Reg places = V::load(kPlaces.at), count = V::broadcast(static_cast<Scalar>(left));
    use(V::choose_less(places, count, V::load(row + c, V::mask(left)), none()));
  }

  static void loss(const SoftmaxLoss& a, std::int64_t first, std::int64_t last) {
    const SoftmaxTargets& t = a.targets;
    const Scalar smoothing = static_cast<Scalar>(t.smoothing);
    for (std::int64_t i = first; i < last; ++i) {
      const Scalar* const row = static_cast<const Scalar*>(t.logits) + i * t.width;
      Reg largest = none();
      each(row, t.width, [&](Reg x) { largest = V::max(x, largest); });
      const Scalar top = V::largest(largest);
      const Reg shift = V::broadcast(top);
      Reg sum = V::zero();
      each(row, t.width, [&](Reg x) { sum = V::add(sum, exponential<V>(V::sub(x, shift))); });
      const Scalar total = V::sum(sum);
      // Not top + log(total) - logit: where the logit is the largest, the loss is far smaller.
      Scalar target = row[t.labels[i]] - top;
      if (smoothing > 0) {
        Scalar mean = 0;
        for (std::int64_t c = 0; c < t.width; ++c) mean += row[c] - top;
        target = (1 - smoothing) * target + smoothing * mean / static_cast<Scalar>(t.width);
      }
      static_cast<Scalar*>(a.losses)[i] = std::log(total) - target;
      Scalar* const state = static_cast<Scalar*>(a.state) + 2 * i;
      state[0] = top;
      state[1] = total;
    }
  }

  static void gradient(const SoftmaxLossGradient& a, std::int64_t first, std::int64_t last) {
    const SoftmaxTargets& t = a.targets;
    const Scalar* const factors = static_cast<const Scalar*>(a.factors);
    const Scalar share = static_cast<Scalar>(t.smoothing / static_cast<double>(t.width));
    for (std::int64_t i = first; i < last; ++i) {
      const Scalar* const row = static_cast<const Scalar*>(t.logits) + i * t.width;
      const Scalar* const state = static_cast<const Scalar*>(a.state) + 2 * i;
      Scalar* const out = static_cast<Scalar*>(a.out) + i * t.width;
      const Scalar factor = static_cast<Scalar>(a.scale) * (factors == nullptr ? 1 : factors[i]);
      const Reg top = V::broadcast(state[0]), norm = V::broadcast(factor / state[1]);
      const Reg common = V::broadcast(-factor * share);
      for (std::int64_t c = 0; c < t.width; c += V::kLanes) {
        const bool whole = c + V::kLanes <= t.width;
        const auto tail = V::mask(whole ? V::kLanes : static_cast<int>(t.width - c));
        const Reg x = whole ? V::load(row + c) : V::load(row + c, tail);
        const Reg value = V::fma(exponential<V>(V::sub(x, top)), norm, common);
        if (whole)
          V::store(out + c, value);
        else
          V::store(out + c, value, tail);
      }
      out[t.labels[i]] -= factor * static_cast<Scalar>(1 - t.smoothing);
    }
  }
};

}  // namespace hpcgnn::kernels
