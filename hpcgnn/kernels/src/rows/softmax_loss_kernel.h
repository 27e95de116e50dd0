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
    const std::int64_t rows = std::clamp<std::int64_t>(kNumbers / a.targets.width, 1, kRows);
    std::vector<Scalar> powers(static_cast<std::size_t>(rows * pitch_of(a.targets.width)));
    for (std::int64_t i = first; i < last; i += rows)
      some(a, i, static_cast<int>(std::min(rows, last - i)), powers.data());
  }

  static void some(const SoftmaxLoss& a, std::int64_t first, int count, Scalar* powers) {
    const SoftmaxTargets& t = a.targets;
    const Scalar* const logits = static_cast<const Scalar*>(t.logits) + first * t.width;
    Scalar* const out =
        a.gradient.out ? static_cast<Scalar*>(a.gradient.out) + first * t.width : nullptr;
    const Scalar* const factors = static_cast<const Scalar*>(a.gradient.factors);
    Softmaxes s{.logits = logits,
                .labels = t.labels + first,
                .losses = static_cast<Scalar*>(a.losses) + first,
                .out = out,
                .width = t.width,
                .count = count,
                .smoothing = static_cast<Scalar>(t.smoothing),
                .share = static_cast<Scalar>(t.smoothing / static_cast<double>(t.width))};
    for (int r = 0; r < count; ++r)
      s.weights[r] = static_cast<Scalar>(a.gradient.scale) * (factors ? factors[first + r] : 1);
    if (t.width <= kNarrow)
      side_by_side(s);
    else
      by_steps(s, powers);
    // Not right after the row: what a masked store has written cannot be forwarded to a load.
    for (int r = 0; out && r < count; ++r)
      out[r * t.width + s.labels[r]] -= s.weights[r] * (1 - s.smoothing);
  }

 private:
  /// Columns of rows whose softmaxes are computed side by side, one in each lane.
  static constexpr std::int64_t kNarrow = 8 < V::kLanes ? 8 : V::kLanes;

  /// Some rows; what is written to `out` lacks the terms of the labels.
  struct Softmaxes {
    const Scalar* logits;
    const std::int64_t* labels;
    Scalar *losses, *out;
    std::int64_t width;
    int count;
    Scalar smoothing, share;
    Scalar tops[kRows] = {}, totals[kRows] = {}, weights[kRows] = {};
  };

  /// Write the losses of rows [first, last), before their gradient, which may replace the logits.
  static void write_losses(const Softmaxes& s, int first, int last) {
    for (int r = first; r < last; ++r) {
      const Scalar* const row = s.logits + r * s.width;
      // Not top + log(total) - logit: if the logit is the largest, the loss is far smaller.
      Scalar target = row[s.labels[r]] - s.tops[r];
      if (s.smoothing > 0) {
        Scalar mean = 0;
        for (std::int64_t c = 0; c < s.width; ++c) mean += row[c] - s.tops[r];
        target = (1 - s.smoothing) * target + s.smoothing * mean / static_cast<Scalar>(s.width);
      }
      s.losses[r] = std::log(s.totals[r]) - target;
    }
  }

  /// Numbers from one row of powers to the next: whole registers.
  static constexpr std::int64_t pitch_of(std::int64_t width) {
    return (width + V::kLanes - 1) / V::kLanes * V::kLanes;
  }

  static void by_steps(Softmaxes& s, Scalar* powers) {
    const std::int64_t pitch = pitch_of(s.width);
    for (int r = 0; r < s.count; ++r) {
      Reg largest = none();
      each(s.logits + r * s.width, s.width,
           [&](Reg x, std::int64_t) { largest = V::max(x, largest); });
      s.tops[r] = V::largest(largest);
    }
    for (int r = 0; r < s.count; ++r) {
      const Reg shift = V::broadcast(s.tops[r]);
      Reg sum = V::zero();
      each(s.logits + r * s.width, s.width, [&](Reg x, std::int64_t c) {
        const Reg power = exponential<V>(V::sub(x, shift));
        sum = V::add(sum, power);
        V::store(powers + r * pitch + c, power);
        // The first and the last step wait for memory, unless this one fetches for them.
        prefetch_far(s.logits, (r + s.count) * s.width + c);
        if (s.out) prefetch_far_to_write(s.out, r * s.width + c);
      });
      s.totals[r] = V::sum(sum);
    }
    write_losses(s, 0, s.count);
    const std::int64_t whole = s.width / V::kLanes * V::kLanes;
    const auto tail = V::mask(static_cast<int>(s.width - whole));
    for (int r = 0; s.out && r < s.count; ++r) {
      const Reg norm = V::broadcast(s.weights[r] / s.totals[r]);
      const Reg common = V::broadcast(-s.weights[r] * s.share);
      const Scalar* const power = powers + r * pitch;
      Scalar* const row = s.out + r * s.width;
      for (std::int64_t c = 0; c < whole; c += V::kLanes)
        V::store(row + c, V::fma(V::load(power + c), norm, common));
      if (whole < s.width)
        V::store(row + whole, V::fma(V::load(power + whole), norm, common), tail);
    }
  }

  /// The same with a lane for each row. Reductions within a register take most of the time of a row
  /// that is no longer than one.
  static void side_by_side(Softmaxes& s) {
    for (int first = 0; first < s.count; first += V::kLanes) {
      const int count = std::min(V::kLanes, s.count - first);
      const Scalar* const rows = s.logits + first * s.width;
      Scalar columns[kNarrow][V::kLanes] = {}, norms[V::kLanes] = {}, shares[V::kLanes] = {};
      for (int r = 0; r < count; ++r)
        for (std::int64_t c = 0; c < s.width; ++c) columns[c][r] = rows[r * s.width + c];
      Reg top = none(), powers[kNarrow], sums[kNarrow];
      for (std::int64_t c = 0; c < s.width; ++c) top = V::max(V::load(columns[c]), top);
      for (std::int64_t c = 0; c < s.width; ++c)
        sums[c] = powers[c] = exponential<V>(V::sub(V::load(columns[c]), top));
      // By halves, as V::sum with AVX.
      for (std::int64_t half = kNarrow / 2; half > 0; half /= 2)
        for (std::int64_t c = 0; c < half && c + half < s.width; ++c)
          sums[c] = V::add(sums[c], sums[c + half]);
      Scalar tops[V::kLanes], totals[V::kLanes];
      V::store(tops, top);
      V::store(totals, sums[0]);
      for (int r = 0; r < count; ++r) {
        s.tops[first + r] = tops[r];
        s.totals[first + r] = totals[r];
        norms[r] = s.weights[first + r] / totals[r];
        shares[r] = -s.weights[first + r] * s.share;
      }
      write_losses(s, first, first + count);
      if (!s.out) continue;
      const Reg norm = V::load(norms), common = V::load(shares);
      for (std::int64_t c = 0; c < s.width; ++c)
        V::store(columns[c], V::fma(powers[c], norm, common));
      Scalar* const out = s.out + first * s.width;
      for (int r = 0; r < count; ++r)
        for (std::int64_t c = 0; c < s.width; ++c) out[r * s.width + c] = columns[c][r];
    }
  }
};

}  // namespace hpcgnn::kernels
