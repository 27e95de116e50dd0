/// Tiles of dense products, templates over the SIMD types; included once per instruction set.
#pragma once

#include <algorithm>

#include "chain/products.h"

namespace hpcgnn::kernels {

template <class V>
struct ProductKernels {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kPanel = 2 * kLanes;
  /// Rows of a tile: two registers for each, of 32, 16 or 8 less two for the panel and a factor.
  static constexpr int kRows = sizeof(Reg) == 64   ? 12
                               : sizeof(Reg) == 32 ? 6
                                                   : V::kSumRegisters / 2;
  static constexpr int kFew = std::max(1, kRows / 3);
  /// Rows of a panel in one pass, so that they stay in the level-1 cache.
  static constexpr std::int64_t kInner = 512;
  /// Rows of both operands of a contraction in one pass, so that they stay in the level-2 cache.
  static constexpr std::int64_t kChunk = 256;

  /// The existing columns of a panel: whole registers, or their first lanes.
  struct Columns {
    int count;
    HPCGNN_INLINE Reg load(const Scalar* p, int half) const {
      const int left = count - half * kLanes;
      if (left >= kLanes) return V::load(p + half * kLanes);
      return left > 0 ? V::load(p + half * kLanes, V::mask(left)) : V::zero();
    }
    HPCGNN_INLINE void store(Scalar* p, int half, Reg r) const {
      const int left = count - half * kLanes;
      if (left >= kLanes)
        V::store(p + half * kLanes, r);
      else if (left > 0)
        V::store(p + half * kLanes, r, V::mask(left));
    }
  };

  /// The sums of R rows: `factor(k, r)` is an element of row r, `panel + k * pitch` the row of the
  /// panel that it multiplies. Lanes beyond the panel's columns are read only if `kFilled`.
  template <int R, bool kFilled, class Factor>
  HPCGNN_INLINE static void tile(std::int64_t inner, const Scalar* panel, std::int64_t pitch,
                                 Columns there, const Scalar* from, Scalar* out,
                                 std::int64_t out_pitch, const Factor& factor) {
    Reg low[R], high[R];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      low[r] = from ? there.load(from + r * out_pitch, 0) : V::zero();
      high[r] = from ? there.load(from + r * out_pitch, 1) : V::zero();
    }
    const auto pass = [&](const auto& load) {
      for (std::int64_t k = 0; k < inner; ++k) {
        const Reg first = load(panel + k * pitch, 0), second = load(panel + k * pitch, 1);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const Reg value = V::broadcast(factor(k, r));
          low[r] = V::fma(value, first, low[r]);
          high[r] = V::fma(value, second, high[r]);
        }
      }
    };
    if (kFilled || there.count >= kPanel)
      pass([](const Scalar* p, int half) { return V::load(p + half * kLanes); });
    else
      pass([there](const Scalar* p, int half) { return there.load(p, half); });
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      there.store(out + r * out_pitch, 0, low[r]);
      there.store(out + r * out_pitch, 1, high[r]);
    }
  }

  /// Call `run.template operator()<R>(i)` for tiles of R rows that cover [first, last).
  template <class Run>
  HPCGNN_INLINE static void cover(std::int64_t first, std::int64_t last, const Run& run) {
    std::int64_t i = first;
    for (; i + kRows <= last; i += kRows) run.template operator()<kRows>(i);
    for (; i + kFew <= last; i += kFew) run.template operator()<kFew>(i);
    for (; i < last; ++i) run.template operator()<1>(i);
  }

  [[gnu::flatten]] static void multiply(const MultiplyArguments& a, std::int64_t first,
                                        std::int64_t last) {
    const Scalar* const rows = static_cast<const Scalar*>(a.rows);
    const Scalar* const panels = static_cast<const Scalar*>(a.panels);
    Scalar* const out = static_cast<Scalar*>(a.out);
    // If there is nothing to add up, one pass writes `from`.
    for (std::int64_t k = 0; k == 0 || k < a.inner; k += kInner) {
      const Scalar* const from = k ? out : static_cast<const Scalar*>(a.from);
      const std::int64_t inner = std::min(kInner, a.inner - k);
      for (std::int64_t c = 0; c < a.columns; c += kPanel) {
        const Columns there{static_cast<int>(std::min<std::int64_t>(kPanel, a.columns - c))};
        const Scalar* const panel = panels + c * a.inner + k * kPanel;
        cover(first, last, [&]<int R>(std::int64_t i) {
          const Scalar* const read = rows + i * a.inner + k;
          const std::int64_t place = i * a.columns + c;
          tile<R, true>(inner, panel, kPanel, there, from ? from + place : nullptr, out + place,
                        a.columns, [&](std::int64_t j, int r) { return read[r * a.inner + j]; });
        });
      }
    }
  }

  [[gnu::flatten]] static void contract(const ContractArguments& a, std::int64_t first,
                                        std::int64_t last) {
    Scalar* const total = static_cast<Scalar*>(a.total);
    for (std::int64_t start = 0; start < a.num_rows; start += kChunk) {
      const std::int64_t count = std::min(kChunk, a.num_rows - start);
      const Scalar* const upper = static_cast<const Scalar*>(a.upper) + start * a.width;
      const Scalar* const rows = static_cast<const Scalar*>(a.rows) + start * a.columns;
      for (std::int64_t c = 0; c < a.columns; c += kPanel) {
        const Columns there{static_cast<int>(std::min<std::int64_t>(kPanel, a.columns - c))};
        cover(first, last, [&]<int R>(std::int64_t i) {
          Scalar* const out = total + i * a.pitch + c;
          tile<R, false>(count, rows + c, a.columns, there, out, out, a.pitch,
                         [&](std::int64_t k, int r) { return upper[k * a.width + i + r]; });
        });
      }
    }
  }
};

template <class F32, class F64>
constexpr ProductsTable make_table() {
  return {.multiply = {ProductKernels<F32>::multiply, ProductKernels<F64>::multiply},
          .contract = {ProductKernels<F32>::contract, ProductKernels<F64>::contract},
          .panel = {ProductKernels<F32>::kPanel, ProductKernels<F64>::kPanel}};
}

}  // namespace hpcgnn::kernels
