/// The loops of shared_kernel.h over columns, which read the rows.
#pragma once

#include "attention/columns.h"
#include "attention/shared.h"
#include "attention/softmax.h"

namespace hpcgnn::kernels {

/// Calls body.template operator()<2>(k) for pairs k, k + 1 below `count`, then <1> for the last.
template <class Body>
HPCGNN_INLINE void for_pairs(std::int64_t count, const Body& body) {
  std::int64_t k = 0;
  for (; k + 2 <= count; k += 2) body.template operator()<2>(k);
  if (k < count) body.template operator()<1>(k);
}

template <class V>
struct SharedColumns {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;
  using Batch = typename Softmax<V>::Batch;

  // Two sums of this many registers, and a row, fit the machine's 32 or 16.
  static constexpr int kMost =
      V::kLanes * sizeof(Scalar) == 64 || kColumnRegs < 4 ? kColumnRegs : 4;
  // Edges to prefetch ahead: these and a batch fit the level-1 cache.
  static constexpr std::int64_t kAhead = 16;
  static constexpr std::int64_t kNever = std::int64_t{1} << 60;

  /// The rows of x of a batch, and the rows after it that their reader prefetches. These are whole
  /// rows, as the hardware follows consecutive lines.
  struct Rows {
    const Scalar* x;
    std::int64_t width;
    const std::int32_t* columns;
    std::int64_t count;
    const Scalar* source;  ///< other numbers needed for each row, prefetched too
    std::int64_t source_pitch;
    const Scalar* gained = nullptr;  ///< with the pitch of source, to be added to; null = nothing
    std::int64_t first = 0, step = kNever;

    /// The same for one of `pairs` pairs of heads, which prefetch equal shares of the rows.
    HPCGNN_INLINE Rows share(std::int64_t pair, std::int64_t pairs, std::int64_t known) const {
      Rows rows = *this;
      rows.first = known < count + kAhead ? kNever : pair;
      rows.step = pairs;
      return rows;
    }

    HPCGNN_INLINE const Scalar* row(std::int64_t e) const { return x + columns[e] * width; }

    HPCGNN_INLINE void foresee(std::int64_t e) const {
      const std::int64_t lines = (width * static_cast<std::int64_t>(sizeof(Scalar)) + 63) / 64;
      const char* const next = reinterpret_cast<const char*>(row(e + kAhead));
      for (std::int64_t line = 0; line < lines; ++line) __builtin_prefetch(next + line * 64);
      __builtin_prefetch(source + columns[e + kAhead] * source_pitch);
      if (gained != nullptr) __builtin_prefetch(gained + columns[e + kAhead] * source_pitch, 1);
    }
  };

  /// Calls body(e, registers) for the columns of each row.
  template <int kRegs, bool kTail, class Body>
  HPCGNN_INLINE static void for_rows(const Rows& rows, std::int64_t column, typename V::Mask tail,
                                     const Body& body) {
    std::int64_t asking = column == 0 ? rows.first : kNever;
    for (std::int64_t e = 0; e < rows.count; ++e) {
      if (e == asking) {
        rows.foresee(e);
        asking += rows.step;
      }
      Reg row[kRegs];
      load_columns<V, kRegs, kTail>(rows.row(e) + column, tail, row);
      body(e, row);
    }
  }

  /// For kWays heads, out = scale * out + sum over e of weight * row e.
  template <int kWays>
  HPCGNN_INLINE static void add_rows(const Rows& rows, const Batch* weights, const Scalar* scales,
                                     Scalar* out, std::int64_t pitch) {
    for_columns<V, kMost>(rows.width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
      add_block<kWays, kRegs, kTail>(rows, weights, scales, out + column, pitch, column, tail);
    });
  }

  template <int kWays, int kRegs, bool kTail>
  static void add_block(const Rows& shared, const Batch* weights, const Scalar* scales, Scalar* out,
                        std::int64_t pitch, std::int64_t column, int tail_lanes) {
    const auto tail = V::mask(tail_lanes);
    const Rows rows = shared;
    Reg sums[kWays][kRegs];
    for (int k = 0; k < kWays; ++k) {
      if (scales[k] == 0) {
        for (Reg& reg : sums[k]) reg = V::zero();
        continue;
      }
      load_columns<V, kRegs, kTail>(out + k * pitch, tail, sums[k]);
      for (Reg& reg : sums[k]) reg = V::mul(V::broadcast(scales[k]), reg);
    }
    for_rows<kRegs, kTail>(rows, column, tail, [&](std::int64_t e, const Reg* row) {
      for (int k = 0; k < kWays; ++k) {
        const Reg weight = V::broadcast(weights[k].at[e]);
        for (int r = 0; r < kRegs; ++r) sums[k][r] = V::fma(weight, row[r], sums[k][r]);
      }
    });
    for (int k = 0; k < kWays; ++k) store_columns<V, kRegs, kTail>(out + k * pitch, tail, sums[k]);
  }

  /// For kWays heads, dots[e] = <row e, grad>.
  template <int kWays>
  HPCGNN_INLINE static void multiply_rows(const Rows& rows, const Scalar* grad, std::int64_t pitch,
                                          Batch* dots) {
    for_columns<V, kMost>(rows.width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
      multiply_block<kWays, kRegs, kTail>(rows, grad + column, pitch, dots, column, tail);
    });
  }

  template <int kWays, int kRegs, bool kTail>
  static void multiply_block(const Rows& shared, const Scalar* grad, std::int64_t pitch,
                             Batch* dots, std::int64_t column, int tail_lanes) {
    const auto tail = V::mask(tail_lanes);
    const Rows rows = shared;
    Reg factors[kWays][kRegs];
    for (int k = 0; k < kWays; ++k)
      load_columns<V, kRegs, kTail>(grad + k * pitch, tail, factors[k]);
    for_rows<kRegs, kTail>(rows, column, tail, [&](std::int64_t e, const Reg* row) {
      for (int k = 0; k < kWays; ++k) {
        Reg sum = V::mul(factors[k][0], row[0]);
        for (int r = 1; r < kRegs; ++r) sum = V::fma(factors[k][r], row[r], sum);
        const Scalar found = V::sum(sum);
        dots[k].at[e] = column == 0 ? found : dots[k].at[e] + found;
      }
    });
  }

  /// For kWays edges, dx[column] += sum over heads of weight * grad.
  template <int kWays>
  HPCGNN_INLINE static void add_heads(const Batch* weights, std::int64_t e, std::int64_t heads,
                                      const Scalar* grad, std::int64_t pitch, std::int64_t width,
                                      const std::int32_t* columns, Scalar* dx) {
    for_columns<V, kMost>(width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
      Scalar* into[kWays];
      for (int k = 0; k < kWays; ++k) into[k] = dx + columns[k] * width + column;
      heads_block<kWays, kRegs, kTail>(weights, e, heads, grad + column, pitch, into, tail);
    });
  }

  template <int kWays, int kRegs, bool kTail>
  static void heads_block(const Batch* weights, std::int64_t e, std::int64_t heads,
                          const Scalar* grad, std::int64_t pitch, Scalar* const (&into)[kWays],
                          int tail_lanes) {
    const auto tail = V::mask(tail_lanes);
    Reg sums[kWays][kRegs];
    for (auto& regs : sums)
      for (Reg& reg : regs) reg = V::zero();
    for (std::int64_t h = 0; h < heads; ++h) {
      Reg row[kRegs];
      load_columns<V, kRegs, kTail>(grad + h * pitch, tail, row);
      for (int k = 0; k < kWays; ++k) {
        const Reg weight = V::broadcast(weights[h].at[e + k]);
        for (int r = 0; r < kRegs; ++r) sums[k][r] = V::fma(weight, row[r], sums[k][r]);
      }
    }
    // One after the other, as a row may have two edges to one column.
    for (int k = 0; k < kWays; ++k) {
      Reg old[kRegs];
      load_columns<V, kRegs, kTail>(into[k], tail, old);
      for (int r = 0; r < kRegs; ++r) old[r] = V::add(old[r], sums[k][r]);
      store_columns<V, kRegs, kTail>(into[k], tail, old);
    }
  }

  /// Prefetch the row of dx that an edge adds to.
  HPCGNN_INLINE static void foresee(const Scalar* dx, std::int64_t width) {
    const std::int64_t lines = (width * static_cast<std::int64_t>(sizeof(Scalar)) + 63) / 64;
    const char* const next = reinterpret_cast<const char*>(dx);
    for (std::int64_t line = 0; line < lines; ++line) __builtin_prefetch(next + line * 64, 1);
  }

  /// Write the columns inside a range to `chosen`; returns their number.
  HPCGNN_INLINE static std::int64_t choose(const std::int32_t* columns, std::int64_t count,
                                           const ColumnRange& range, std::int32_t* chosen) {
    std::int64_t found = 0;
    for (std::int64_t e = 0; e < count; ++e) {
      chosen[found] = columns[e];
      found += columns[e] >= range.first && columns[e] < range.last;
    }
    return found;
  }
};

}  // namespace hpcgnn::kernels
