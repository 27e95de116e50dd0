/// Rows as integers, templates over the SIMD types; included once per instruction set.
#pragma once

#include <bit>
#include <cstdint>

#include "rows/integers.h"
#include "simd/half.h"

namespace hpcgnn::kernels {

template <class V, class S>
struct IntegersKernels {
  using Reg = typename V::Reg;
  static constexpr float kLargest = 127.0f;
  // Adding it rounds a number to an integer, which the low bits then hold.
  static constexpr float kRounds = 12582912.0f;

  static void rows(const Integers& p, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const S* const row = static_cast<const S*>(p.x) + i * p.width;
      std::int8_t* const out = p.out + i * p.width;
      Reg top = V::zero(), faults = V::zero();
      for_columns(0, p.width, [&](std::int64_t c, auto... tail) {
        measure(V::load(row + c, tail...), top, faults);
      });
      const float largest = V::largest(top) + V::sum(faults);
      const Reg factor = V::broadcast(largest > 0 ? kLargest / largest : 0.0f);
      for_columns(0, p.width, [&](std::int64_t c, auto... tail) {
        round(V::load(row + c, tail...), factor, out + c, lanes(p.width, c));
      });
      p.scales[i] = largest / kLargest;
    }
  }

  static void columns(const Integers& p, std::int64_t first, std::int64_t last) {
    const S* const x = static_cast<const S*>(p.x);
    for_columns(first, last, [&](std::int64_t c, auto... tail) {
      Reg top = V::zero(), faults = V::zero();
      for (std::int64_t i = 0; i < p.num_rows; ++i)
        measure(V::load(x + i * p.width + c, tail...), top, faults);
      const int count = lanes(last, c);
      float factors[V::kLanes] = {};
      V::store(factors, V::add(top, faults));
      for (int lane = 0; lane < count; ++lane) {
        p.scales[c + lane] = factors[lane] / kLargest;
        factors[lane] = factors[lane] > 0 ? kLargest / factors[lane] : 0.0f;
      }
      const Reg factor = V::load(factors);
      for (std::int64_t i = 0; i < p.num_rows; ++i)
        round(V::load(x + i * p.width + c, tail...), factor, p.out + i * p.width + c, count);
    });
  }

  static void sums(const IntegerSums& p, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int32_t* const from = p.sums + i * p.width;
      S* const out = static_cast<S*>(p.out) + i * p.width;
      const Reg scale = V::broadcast(p.row_scales[i]);
      for_columns(0, p.width, [&](std::int64_t c, auto... tail) {
        float wide[V::kLanes] = {};
        const int count = lanes(p.width, c);
        for (int lane = 0; lane < count; ++lane) wide[lane] = static_cast<float>(from[c + lane]);
        const Reg factor = V::mul(scale, V::load(p.column_scales + c, tail...));
        Reg result = V::mul(V::load(wide), factor);
        if (p.bias) result = V::add(result, V::load(p.bias + c, tail...));
        if (p.accumulate) result = V::add(V::load(out + c, tail...), result);
        V::store(out + c, result, tail...);
      });
    }
  }

 private:
  HPCGNN_INLINE static int lanes(std::int64_t width, std::int64_t c) {
    return c + V::kLanes <= width ? V::kLanes : static_cast<int>(width - c);
  }

  /// Update the largest sizes; faults become NaN where x is not finite, which maxima may miss.
  HPCGNN_INLINE static void measure(Reg x, Reg& top, Reg& faults) {
    top = V::max(top, V::max(x, V::sub(V::zero(), x)));
    faults = V::fma(x, V::zero(), faults);
  }

  HPCGNN_INLINE static void round(Reg x, Reg factor, std::int8_t* out, int count) {
    float sums[V::kLanes];
    V::store(sums, V::fma(x, factor, V::broadcast(kRounds)));
    for (int lane = 0; lane < count; ++lane)
      out[lane] = static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(sums[lane]) & 255u);
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
