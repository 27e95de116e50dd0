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

  static void rows(const IntegerRows& p, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const S* const row = static_cast<const S*>(p.x) + i * p.width;
      std::int8_t* const out = p.out + i * p.width;
      Reg top = V::zero(), faults = V::zero();
      for_columns(p.width, [&](std::int64_t c, auto... tail) {
        const Reg x = V::load(row + c, tail...);
        top = V::max(top, V::max(x, V::sub(V::zero(), x)));
        // NaN where x is not finite, which maxima may miss.
        faults = V::fma(x, V::zero(), faults);
      });
      const float largest = V::largest(top) + V::sum(faults);
      const Reg factor = V::broadcast(largest > 0 ? kLargest / largest : 0.0f);
      for_columns(p.width, [&](std::int64_t c, auto... tail) {
        float sums[V::kLanes];
        V::store(sums, V::fma(V::load(row + c, tail...), factor, V::broadcast(kRounds)));
        const int count = lanes(p.width, c);
        for (int lane = 0; lane < count; ++lane)
          out[c + lane] = static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(sums[lane]) & 255u);
      });
      p.scales[i] = largest / kLargest;
    }
  }

  static void sums(const IntegerSums& p, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int32_t* const from = p.sums + i * p.width;
      S* const out = static_cast<S*>(p.out) + i * p.width;
      const Reg scale = V::broadcast(p.row_scales[i]);
      for_columns(p.width, [&](std::int64_t c, auto... tail) {
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

  /// Call work(c) for each register of columns, and work(c, mask) for the rest.
  template <class Work>
  HPCGNN_INLINE static void for_columns(std::int64_t width, const Work& work) {
    std::int64_t c = 0;
    for (; c + V::kLanes <= width; c += V::kLanes) work(c);
    if (c < width) work(c, V::mask(static_cast<int>(width - c)));
  }
};

template <class F32>
constexpr IntegersTable make_integers_table() {
  IntegersTable table{};
  const auto set = [&]<class S>(Storage storage, S) {
    table.rows[static_cast<int>(storage)] = IntegersKernels<F32, S>::rows;
    table.sums[static_cast<int>(storage)] = IntegersKernels<F32, S>::sums;
  };
  set(Storage::kFloat32, float{});
  set(Storage::kBFloat16, BFloat16{});
  set(Storage::kFloat16, Float16{});
  return table;
}

}  // namespace hpcgnn::kernels
