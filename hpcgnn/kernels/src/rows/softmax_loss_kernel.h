/// Cross entropy of softmaxes, templates over the SIMD types; included once per instruction set.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "rows/losses.h"
#include "rows/places.h"
#include "simd/exponential.h"
#include "simd/prefetch.h"

namespace hpcgnn::kernels {

template <class V>
struct SoftmaxLossKernels {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;

  HPCGNN_INLINE static Reg none() { return V::broadcast(-static_cast<Scalar>(INFINITY)); }

  /// Call `use` with the registers of a row and their first column; the last one is filled up with
  /// -inf, which does not change a softmax.
  template <class Use>
  HPCGNN_INLINE static void each(const Scalar* row, std::int64_t width, const Use& use) {
    std::int64_t c = 0;
    for (; c + V::kLanes <= width; c += V::kLanes) use(V::load(row + c), c);
    if (c == width) return;
    const int left = static_cast<int>(width - c);
    const Reg places = V::load(kPlaces<V>.at), count = V::broadcast(static_cast<Scalar>(left));
    use(V::choose_less(places, count, V::load(row + c, V::mask(left)), none()), c);
  }

  /// Rows that go through each step together: the steps of a row wait for one another, those of
  /// several rows do not.
  static constexpr int kRows = 16;
  /// Numbers of a step, which stay in the level-1 cache.
  static constexpr std::int64_t kNumbers = 1024;

  static void loss(const SoftmaxLoss& a, std::int64_t first, std::int64_t last) {
    const std::int64_t registers = (a.targets.width + V::kLanes - 1) / V::kLanes;
    const std::int64_t rows = std::clamp<std::int64_t>(kNumbers / a.targets.width, 1, kRows);
    std::vector<Scalar> powers(static_cast<std::size_t>(rows * registers * V::kLanes));
    for (std::int64_t i = first; i < last; i += rows)
      some(a, i, static_cast<int>(std::min(rows, last - i)), powers.data());
  }

  static void some(const SoftmaxLoss& a, std::int64_t first, int count, Scalar* powers) {
    const SoftmaxTargets& t = a.targets;
    const Scalar* const logits = static_cast<const Scalar*>(t.logits) + first * t.width;
    Scalar* const out = static_cast<Scalar*>(a.gradient.out);
    const std::int64_t pitch = (t.width + V::kLanes - 1) / V::kLanes * V::kLanes;
    Scalar tops[kRows], totals[kRows];
    for (int r = 0; r < count; ++r) {
      Reg largest = none();
      each(logits + r * t.width, t.width,
           [&](Reg x, std::int64_t) { largest = V::max(x, largest); });
      tops[r] = V::largest(largest);
    }
    for (int r = 0; r < count; ++r) {
      const Reg shift = V::broadcast(tops[r]);
      Reg sum = V::zero();
      each(logits + r * t.width, t.width, [&](Reg x, std::int64_t c) {
        const Reg power = exponential<V>(V::sub(x, shift));
        sum = V::add(sum, power);
        V::store(powers + r * pitch + c, power);
        // The first and the last step wait for memory, unless this one fetches for them.
        prefetch_far(logits, (r + count) * t.width + c);
        if (out) prefetch_far_to_write(out, (first + r) * t.width + c);
      });
      totals[r] = V::sum(sum);
    }
    if (a.gradient.out) write_gradient(a, first, count, powers, totals);
    for (int r = 0; r < count; ++r) {
      const Scalar* const row = logits + r * t.width;
      // Not top + log(total) - logit: if the logit is the largest, the loss is far smaller.
      Scalar target = row[t.labels[first + r]] - tops[r];
      if (t.smoothing > 0) {
        const Scalar smoothing = static_cast<Scalar>(t.smoothing);
        Scalar mean = 0;
        for (std::int64_t c = 0; c < t.width; ++c) mean += row[c] - tops[r];
        target = (1 - smoothing) * target + smoothing * mean / static_cast<Scalar>(t.width);
      }
      static_cast<Scalar*>(a.losses)[first + r] = std::log(totals[r]) - target;
      if (!out) continue;
      // Not right after the row: what a masked store has written cannot be forwarded to a load.
      out[(first + r) * t.width + t.labels[first + r]] -=
          weight_of(a, first + r) * (1 - static_cast<Scalar>(t.smoothing));
    }
  }

  HPCGNN_INLINE static Scalar weight_of(const SoftmaxLoss& a, std::int64_t row) {
    const Scalar* const factors = static_cast<const Scalar*>(a.gradient.factors);
    return static_cast<Scalar>(a.gradient.scale) * (factors ? factors[row] : 1);
  }

  static void write_gradient(const SoftmaxLoss& a, std::int64_t first, int count,
                             const Scalar* powers, const Scalar* totals) {
    const SoftmaxTargets& t = a.targets;
    Scalar* const out = static_cast<Scalar*>(a.gradient.out) + first * t.width;
    const Scalar share = static_cast<Scalar>(t.smoothing / static_cast<double>(t.width));
    const std::int64_t whole = t.width / V::kLanes * V::kLanes;
    const std::int64_t pitch = (t.width + V::kLanes - 1) / V::kLanes * V::kLanes;
    const auto tail = V::mask(static_cast<int>(t.width - whole));
    for (int r = 0; r < count; ++r) {
      const Scalar weight = weight_of(a, first + r);
      const Reg norm = V::broadcast(weight / totals[r]), common = V::broadcast(-weight * share);
      const Scalar* const power = powers + r * pitch;
      Scalar* const row = out + r * t.width;
      for (std::int64_t c = 0; c < whole; c += V::kLanes)
        V::store(row + c, V::fma(V::load(power + c), norm, common));
      if (whole < t.width)
        V::store(row + whole, V::fma(V::load(power + whole), norm, common), tail);
    }
  }
};

}  // namespace hpcgnn::kernels
