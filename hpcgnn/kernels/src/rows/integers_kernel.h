/// Rows as integers, templates over the SIMD types; included once per instruction set.
#pragma once

#include <cstdint>

#include "rows/integers.h"
#include "simd/half.h"

namespace hpcgnn::kernels {

template <class V, class S>
struct IntegersKernels {
  using Reg = typename V::Reg;
  static constexpr float kLargest = 127.0f;
  /// Registers of columns that are measured together: whole lines of memory of each row.
  static constexpr int kTogether = 4;

  static void rows(const Integers& p, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const S* const row = static_cast<const S*>(p.x) + i * p.width;
      std::int8_t* const out = p.out + i * p.width;
      Sizes sizes;
      for_columns(0, p.width,
                  [&](std::int64_t c, auto... tail) { sizes.add(V::load(row + c, tail...)); });
      const float largest = V::largest(sizes.top) + V::sum(sizes.faults);
      const Reg factor = V::broadcast(largest > 0 ? kLargest / largest : 0.0f);
      for_columns(0, p.width, [&](std::int64_t c, auto... tail) {
        V::store(out + c, V::mul(V::load(row + c, tail...), factor), tail...);
      });
      p.scales[i] = largest * (1 / kLargest);
    }
  }

  static void columns(const Integers& p, std::int64_t first, std::int64_t last) {
    constexpr int kColumns = kTogether * V::kLanes;
    std::int64_t c = first;
    for (; c + kColumns <= last; c += kColumns) round_columns<kTogether>(p, c);
    for_columns(c, last, [&](std::int64_t at, auto... tail) { round_columns<1>(p, at, tail...); });
  }

  static void sums(const IntegerSums& p, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int32_t* const from = p.sums + i * p.width;
      S* const out = static_cast<S*>(p.out) + i * p.width;
      const Reg scale = V::broadcast(p.row_scales[i]);
      for_columns(0, p.width, [&](std::int64_t c, auto... tail) {
        const Reg factor = V::mul(scale, V::load(p.column_scales + c, tail...));
        Reg result = V::mul(V::load(from + c, tail...), factor);
        if (p.bias) result = V::add(result, V::load(p.bias + c, tail...));
        if (p.accumulate) result = V::add(V::load(out + c, tail...), result);
        V::store(out + c, result, tail...);
      });
    }
  }

 private:
  /// The largest sizes; faults become NaN where x is not finite, which maxima may miss.
  struct Sizes {
    Reg top = V::zero(), faults = V::zero();

    HPCGNN_INLINE void add(Reg x) {
      top = V::max(top, V::max(x, V::sub(V::zero(), x)));
      faults = V::fma(x, V::zero(), faults);
    }
  };

  /// Round `registers` registers of columns from c; with a mask there is one.
  template <int registers, class... Tail>
  HPCGNN_INLINE static void round_columns(const Integers& p, std::int64_t c, Tail... tail) {
    const S* const x = static_cast<const S*>(p.x) + c;
    Sizes sizes[registers];
    for (std::int64_t i = 0; i < p.num_rows; ++i)
      for (int r = 0; r < registers; ++r)
        sizes[r].add(V::load(x + i * p.width + r * V::kLanes, tail...));
    Reg factor[registers];
    for (int r = 0; r < registers; ++r) {
      const Reg largest = V::add(sizes[r].top, sizes[r].faults);
      V::store(p.scales + c + r * V::kLanes, V::mul(largest, V::broadcast(1 / kLargest)), tail...);
      float lanes[V::kLanes];
      V::store(lanes, largest);
      for (float& lane : lanes) lane = lane > 0 ? kLargest / lane : 0.0f;
      factor[r] = V::load(lanes);
    }
    for (std::int64_t i = 0; i < p.num_rows; ++i) {
      for (int r = 0; r < registers; ++r) {
        const std::int64_t at = i * p.width + r * V::kLanes;
        V::store(p.out + at + c, V::mul(V::load(x + at, tail...), factor[r]), tail...);
      }
    }
  }

  /// Call work(c) for each register of columns, and work(c, mask) for the rest.
  template <class Work>
  HPCGNN_INLINE static void for_columns(std::int64_t first, std::int64_t last, const Work& work) {
    std::int64_t c = first;
    for (; c + V::kLanes <= last; c += V::kLanes) work(c);
    if (c < last) work(c, V::mask(static_cast<int>(last - c)));
  }
};

template <class F32>
constexpr IntegersTable make_integers_table() {
  IntegersTable table{};
  const auto set = [&]<class S>(Storage storage, S) {
    table.rows[static_cast<int>(storage)] = IntegersKernels<F32, S>::rows;
    table.columns[static_cast<int>(storage)] = IntegersKernels<F32, S>::columns;
    table.sums[static_cast<int>(storage)] = IntegersKernels<F32, S>::sums;
  };
  set(Storage::kFloat32, float{});
  set(Storage::kBFloat16, BFloat16{});
  set(Storage::kFloat16, Float16{});
  return table;
}

}  // namespace hpcgnn::kernels
