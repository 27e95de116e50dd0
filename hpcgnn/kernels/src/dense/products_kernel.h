/// Tiles of dense products, templates over the SIMD types; included once per instruction set.
#pragma once

#include <algorithm>
#include <cstddef>

#include "dense/products.h"
#include "simd/prefetch.h"

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
  /// Rows of both operands of a contraction in one pass, so that what a tile reads of them stays in
  /// the level-1 cache.
  static constexpr std::int64_t kChunk = 64;
  static constexpr std::int64_t kLine = 64;

  /// The existing columns of a panel: whole registers, or their first lanes.
  struct Columns {
    int count;
    HPCGNN_INLINE Reg load(const Scalar* p, int part) const {
      const int left = count - part * kLanes;
      if (left >= kLanes) return V::load(p + part * kLanes);
      return left > 0 ? V::load(p + part * kLanes, V::mask(left)) : V::zero();
    }
    HPCGNN_INLINE void store(Scalar* p, int part, Reg r) const {
      const int left = count - part * kLanes;
      if (left >= kLanes)
        V::store(p + part * kLanes, r);
      else if (left > 0)
        V::store(p + part * kLanes, r, V::mask(left));
    }
  };

  /// Where the sums of a tile begin, and where they go.
  struct Sums {
    const Scalar* from;  ///< null = zeros
    std::int64_t from_pitch;
    Scalar* out;
    std::int64_t out_pitch;
  };

  /// What multiplies the rows of a panel: for row k, element r is `at[k * step + r * pitch]`.
  struct Factors {
    const Scalar* at;
    std::int64_t step, pitch;
  };

  /// The sums of R rows in N registers each: row `panel + k * pitch` of the panel times factor r of
  /// row k is added to row r, for each k below `inner`. Lanes beyond the panel's columns are read
  /// only if `kFilled`; then factors have a step of 1, else a pitch of 1. Meanwhile `ahead` is
  /// prefetched.
  template <int R, int N, bool kFilled>
  HPCGNN_INLINE static void tile(std::int64_t inner, const Scalar* panel, std::int64_t pitch,
                                 Columns there, const Sums& s, const Factors& factors,
                                 Unread ahead) {
    // A pointer for each row is more than there are registers; addresses take a pitch, or twice.
    constexpr int kTogether = kFilled ? 3 : R, kPointers = (R + kTogether - 1) / kTogether;
    const std::int64_t step = kFilled ? 1 : factors.step, apart = kFilled ? factors.pitch : 1;
    const Scalar* at[kPointers];
#pragma GCC unroll 4
    for (int p = 0; p < kPointers; ++p) at[p] = factors.at + p * kTogether * apart;
    Reg sums[R][N];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n)
        sums[r][n] = s.from ? there.load(s.from + r * s.from_pitch, n) : V::zero();
    }
    const auto pass = [&](const auto& load) {
      for (std::int64_t k = 0; k < inner; ++k) {
        if (k * kLine < ahead.bytes)
          prefetch_far(static_cast<const std::byte*>(ahead.data), k * kLine);
        Reg row[N];
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) row[n] = load(panel + k * pitch, n);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const Reg value = V::broadcast(at[r / kTogether][r % kTogether * apart]);
#pragma GCC unroll 2
          for (int n = 0; n < N; ++n) sums[r][n] = V::fma(value, row[n], sums[r][n]);
        }
#pragma GCC unroll 4
        for (int p = 0; p < kPointers; ++p) at[p] = opaque(at[p] + step);
      }
    };
    if (kFilled || there.count >= N * kLanes)
      pass([](const Scalar* p, int part) { return V::load(p + part * kLanes); });
    else
      pass([there](const Scalar* p, int part) { return there.load(p, part); });
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) there.store(s.out + r * s.out_pitch, n, sums[r][n]);
    }
  }

  /// Call `run.template operator()<R, N>(i)` for tiles of R rows that cover [first, last), with as
  /// many registers as a panel of these columns needs.
  template <class Run>
  HPCGNN_INLINE static void cover(std::int64_t first, std::int64_t last, Columns there,
                                  const Run& run) {
    const auto with = [&]<int N>() {
      std::int64_t i = first;
      for (; i + kRows <= last; i += kRows) run.template operator()<kRows, N>(i);
      for (; i + kFew <= last; i += kFew) run.template operator()<kFew, N>(i);
      for (; i < last; ++i) run.template operator()<1, N>(i);
    };
    if (there.count > kLanes)
      with.template operator()<2>();
    else
      with.template operator()<1>();
  }

  [[gnu::flatten]] static void multiply(const MultiplyArguments& a, std::int64_t first,
                                        std::int64_t last) {
    const Scalar* const rows = static_cast<const Scalar*>(a.rows);
    const Scalar* const panels = static_cast<const Scalar*>(a.panels);
    Scalar* const out = static_cast<Scalar*>(a.out);
    const std::int64_t pitch = a.inner;
    const auto row_bytes = pitch * static_cast<std::int64_t>(sizeof(Scalar));
    // Long rows are more streams than processors prefetch.
    const bool fetches = row_bytes >= 4 * kLine && pitch <= kInner;
    // If there is nothing to add up, one pass writes `from`.
    for (std::int64_t k = 0; k == 0 || k < a.inner; k += kInner) {
      const Scalar* const from = k ? out : static_cast<const Scalar*>(a.from);
      const std::int64_t from_pitch = k || !a.repeats ? a.columns : 0;
      const std::int64_t inner = std::min(kInner, a.inner - k);
      for (std::int64_t c = 0; c < a.columns; c += kPanel) {
        const Columns there{static_cast<int>(std::min<std::int64_t>(kPanel, a.columns - c))};
        const Scalar* const panel = panels + c * a.inner + k * kPanel;
        cover(first, last, there, [&]<int R, int N>(std::int64_t i) {
          const Scalar* const read = rows + i * a.inner + k;
          Unread ahead;
          if (fetches && c == 0) {
            ahead.bytes = R * (a.ahead ? a.ahead_row_bytes : row_bytes);
            ahead.data =
                a.ahead ? far_address(static_cast<const std::byte*>(a.ahead), i * a.ahead_row_bytes)
                        : far_address(read, R * pitch);
          }
          const Sums sums{from ? from + i * from_pitch + c : nullptr, from_pitch,
                          out + i * a.columns + c, a.columns};
          tile<R, N, true>(inner, panel, kPanel, there, sums, {read, 1, pitch}, ahead);
        });
      }
    }
  }

  [[gnu::flatten]] static void contract(const ContractArguments& a, std::int64_t first,
                                        std::int64_t last) {
    Scalar* const total = static_cast<Scalar*>(a.total);
    const std::int64_t width = a.width;
    constexpr auto kBytes = kChunk * static_cast<std::int64_t>(sizeof(Scalar));
    // Each tile brings some of the lines that are read next.
    Unread ahead[] = {a.ahead[0], a.ahead[1]};
    for (std::int64_t start = 0; start < a.num_rows; start += kChunk) {
      const std::int64_t count = std::min(kChunk, a.num_rows - start);
      const Scalar* const upper = static_cast<const Scalar*>(a.upper) + start * a.width;
      const Scalar* const rows = static_cast<const Scalar*>(a.rows) + start * a.columns;
      if (!a.ahead[0].data && start + 2 * kChunk <= a.num_rows) {
        ahead[0] = {upper + kChunk * width, kBytes * width};
        ahead[1] = {rows + kChunk * a.columns, kBytes * a.columns};
      }
      for (std::int64_t c = 0; c < a.columns; c += kPanel) {
        const Columns there{static_cast<int>(std::min<std::int64_t>(kPanel, a.columns - c))};
        cover(first, last, there, [&]<int R, int N>(std::int64_t i) {
          Scalar* const out = total + i * a.pitch + c;
          Unread& next = ahead[ahead[0].bytes <= 0];
          const Sums sums{out, a.pitch, out, a.pitch};
          tile<R, N, false>(count, rows + c, a.columns, there, sums, {upper + i, width, 1}, next);
          next = {far_address(static_cast<const std::byte*>(next.data), count * kLine),
                  next.bytes - count * kLine};
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
