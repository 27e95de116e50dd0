/// The SpMM kernel, a template over the SIMD types; included once per instruction set.
///
/// A block of columns stays in registers during the walk over the non-zeros of a row. If the
/// registers hold the whole row, whole rows of x are read, which suits the hardware best, and the
/// pattern is read once. Each output element is summed over its non-zeros in order, for any block,
/// tile or thread, so results depend only on the instruction set.
#pragma once

#include <algorithm>

#include "simd/prefetch.h"
#include "simd/storages.h"
#include "spmm/problem.h"

namespace hpcgnn::kernels {

// Measured: a core keeps about this many line fills in flight before it drops prefetches.
inline constexpr std::int64_t kPrefetchLines = 96;
// Between reads of x the hardware loses track of the pattern and its values: their lines are
// prefetched this many non-zeros ahead.
inline constexpr std::int64_t kPatternDistance = 512;

/// Whether a row lies in the pattern and is not too long; one branch, since every row is checked.
HPCGNN_INLINE bool row_is_sound(const SpmmProblem& p, std::int64_t begin, std::int64_t end) {
  const auto first = static_cast<std::uint64_t>(begin), last = static_cast<std::uint64_t>(end);
  return (first <= last) & (last <= static_cast<std::uint64_t>(p.num_indices)) &
         (last - first <= p.longest_row);
}

/// A row with an unfinished sum: its non-zeros from `next` on are still to be added.
template <class V, int kRegs>
struct RowSum {
  typename V::Reg reg[kRegs];
  std::int64_t row, next, end;
};

/// `kRegs` registers of columns starting at `column`; with `kTail` the last one is partial.
template <class V, class X, class Out, int kRegs, bool kTail, bool kWeighted>
class SpmmBlock {
 public:
  using Row = RowSum<V, kRegs>;

  // This copy stays in registers, because no store can alias it.
  SpmmBlock(const SpmmProblem& problem, std::int64_t column, int tail_lanes)
      : p(problem),
        x(static_cast<const X*>(p.x) + column),
        out(static_cast<Out*>(p.out) + column),
        values(static_cast<const Scalar*>(p.values)),
        row_factors(static_cast<const Scalar*>(p.row_factors)),
        tail(V::mask(tail_lanes)) {}

  /// Compute rows one after the other; returns whether any was skipped.
  HPCGNN_INLINE bool one_by_one(std::int64_t first_row, std::int64_t last_row) const {
    bool skipped = false;
    Row row;
    for (std::int64_t i = first_row; (i = begin(row, i, last_row, skipped)) < last_row; ++i) {
      walk(row);
      finish(row);
    }
    return skipped;
  }

  /// The same with one row of each half at a time, since additions to one sum must wait in turn.
  HPCGNN_INLINE bool two_by_two(std::int64_t first_row, std::int64_t last_row) const {
    const std::int64_t middle = std::lower_bound(p.begin + first_row, p.begin + last_row,
                                                 (p.begin[first_row] + p.end[last_row - 1]) / 2) -
                                p.begin;
    bool skipped = false;
    Row upper, lower;
    std::int64_t i = begin(upper, first_row, middle, skipped);
    std::int64_t j = begin(lower, middle, last_row, skipped);
    while (i < middle && j < last_row) {
      const std::int64_t count = std::min(upper.end - upper.next, lower.end - lower.next);
      for (std::int64_t e = 0; e < count; ++e) {
        add(upper, upper.next + e);
        add(lower, lower.next + e);
      }
      upper.next += count;
      lower.next += count;
      if (upper.next == upper.end) {
        finish(upper);
        i = begin(upper, i + 1, middle, skipped);
      }
      if (lower.next == lower.end) {
        finish(lower);
        j = begin(lower, j + 1, last_row, skipped);
      }
    }
    skipped |= rest(*this, upper, i, middle);
    skipped |= rest(*this, lower, j, last_row);
    return skipped;
  }

 private:
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;
  static constexpr int kFull = kTail ? kRegs - 1 : kRegs;
  static constexpr std::int64_t kBytes = std::int64_t{kRegs} * V::kLanes * sizeof(X);
  static constexpr std::int64_t kLines = (kBytes + 63) / 64;
  static constexpr std::int64_t kDistance = (kPrefetchLines + kLines - 1) / kLines;

  /// Begin the first row from `i` on that is not skipped; returns it, or `last_row`.
  HPCGNN_INLINE std::int64_t begin(Row& row, std::int64_t i, std::int64_t last_row,
                                   bool& skipped) const {
    for (; i < last_row; ++i) {
      if (row_is_sound(p, p.begin[i], p.end[i])) {
        for (Reg& reg : row.reg) reg = V::zero();
        row.row = i, row.next = p.begin[i], row.end = p.end[i];
        return i;
      }
      skipped = true;
    }
    return i;
  }

  /// Finish a row that has begun, and compute those behind it. Takes copies, so that the caller's
  /// originals stay in registers, since this call is not inlined.
  [[gnu::noinline]] static bool rest(SpmmBlock block, Row row, std::int64_t i,
                                     std::int64_t last_row) {
    if (i >= last_row) return false;
    block.walk(row);
    block.finish(row);
    return block.one_by_one(i + 1, last_row);
  }

  /// Add the remaining non-zeros, and prefetch the rows of x that follow.
  HPCGNN_INLINE void walk(Row& row) const {
    // Rows near the end of the pattern can only look ahead to themselves.
    const std::int32_t* const ahead =
        p.indices + (row.end + kDistance <= p.num_indices ? kDistance : 0);
    for (std::int64_t e = row.next; e < row.end;) {
      const std::int64_t stop = row.end - e < p.pattern_step ? row.end : e + p.pattern_step;
      prefetch_far(p.indices, e + kDistance + kPatternDistance);
      if constexpr (kWeighted)
        if (!p.by_column) prefetch_far(values, e + kPatternDistance);
      for (; e < stop; ++e) {
        const char* const next = reinterpret_cast<const char*>(x + ahead[e] * p.x_pitch);
        for (std::int64_t line = 0; line < kLines; ++line) __builtin_prefetch(next + line * 64);
        add(row, e);
      }
    }
  }

  HPCGNN_INLINE void add(Row& row, std::int64_t e) const {
    const X* const source = x + p.indices[e] * p.x_pitch;
    if constexpr (kWeighted) {
      const Reg value = V::broadcast(values[p.by_column ? p.indices[e] : e]);
      for (int r = 0; r < kFull; ++r)
        row.reg[r] = V::fma(value, V::load(source + r * V::kLanes), row.reg[r]);
      if constexpr (kTail)
        row.reg[kFull] = V::fma(value, V::load(source + kFull * V::kLanes, tail), row.reg[kFull]);
    } else {
      for (int r = 0; r < kFull; ++r)
        row.reg[r] = V::add(V::load(source + r * V::kLanes), row.reg[r]);
      if constexpr (kTail)
        row.reg[kFull] = V::add(V::load(source + kFull * V::kLanes, tail), row.reg[kFull]);
    }
  }

  /// Scale the sum of a row and write it.
  HPCGNN_INLINE void finish(Row& row) const {
    if (p.mean) {
      const std::int64_t count = p.counts ? p.counts[row.row] : p.end[row.row] - p.begin[row.row];
      const Reg scale =
          V::broadcast(count > 0 ? Scalar(1) / static_cast<Scalar>(count) : Scalar(0));
      for (Reg& reg : row.reg) reg = V::mul(reg, scale);
    }
    const std::int64_t out_row = p.rows ? p.rows[row.row] : row.row;
    if (row_factors) {
      const Reg factor = V::broadcast(row_factors[out_row]);
      for (Reg& reg : row.reg) reg = V::mul(reg, factor);
    }
    Out* const target = out + out_row * p.out_pitch;
    if (p.accumulate) {
      for (int r = 0; r < kFull; ++r)
        row.reg[r] = V::add(row.reg[r], V::load(target + r * V::kLanes));
      if constexpr (kTail)
        row.reg[kFull] = V::add(row.reg[kFull], V::load(target + kFull * V::kLanes, tail));
    }
    if (p.stream) {
      for (int r = 0; r < kFull; ++r) V::stream(target + r * V::kLanes, row.reg[r]);
    } else {
      for (int r = 0; r < kFull; ++r) V::store(target + r * V::kLanes, row.reg[r]);
    }
    if constexpr (kTail) V::store(target + kFull * V::kLanes, row.reg[kFull], tail);
  }

  const SpmmProblem p;
  const X* const x;
  Out* const out;
  const Scalar* const values;
  const Scalar* const row_factors;
  const typename V::Mask tail;
};

/// Cuts the columns into register blocks and runs each over the rows.
template <class V, class X, class Out, int kMaxRegs>
struct SpmmColumns {
  /// The next smaller size of a block; few sizes above eight are worth compiling.
  static constexpr int below(int regs) { return regs > 12 ? 12 : regs > 8 ? 8 : regs - 1; }

  /// Runs the largest block that `wanted` registers fill; returns its number of registers.
  template <int kRegs = kMaxRegs>
  static int block(std::int64_t wanted, const SpmmProblem& p, std::int64_t first_row,
                   std::int64_t last_row, std::int64_t column, bool& skipped) {
    if constexpr (kRegs > 1)
      if (wanted < kRegs)
        return block<below(kRegs)>(wanted, p, first_row, last_row, column, skipped);
    const std::int64_t left = p.width - column;
    const auto compute = [&]<bool kTail, bool kWeighted>(int tail) {
      const SpmmBlock<V, X, Out, kRegs, kTail, kWeighted> rows(p, column, tail);
      // With more registers there are enough independent sums.
      if constexpr (kRegs == 1)
        if (p.long_rows) return rows.two_by_two(first_row, last_row);
      return rows.one_by_one(first_row, last_row);
    };
    const auto run = [&]<bool kTail>(int tail) {
      return p.values != nullptr ? compute.template operator()<kTail, true>(tail)
                                 : compute.template operator()<kTail, false>(tail);
    };
    skipped |= left < kRegs * V::kLanes
                   ? run.template operator()<true>(static_cast<int>(left % V::kLanes))
                   : run.template operator()<false>(0);
    return kRegs;
  }

  static bool run(const SpmmProblem& p, std::int64_t first_row, std::int64_t last_row) {
    bool skipped = false;
    for (std::int64_t column = 0; column < p.width;) {
      const std::int64_t wanted = (p.width - column + V::kLanes - 1) / V::kLanes;
      column += block(wanted, p, first_row, last_row, column, skipped) * V::kLanes;
    }
    if (p.stream) V::fence();
    return skipped;
  }
};

template <class F32, class F64>
constexpr SpmmTable make_table() {
  SpmmTable table{};
  const auto set = [&]<class V, class X, class Out>(Storage x, Storage out) {
    constexpr int kMost = sizeof(X) == sizeof(Out) && sizeof(X) > 2 ? V::kSumRegisters : 8;
    constexpr int kRegs = kColumnRegs < 8 ? kColumnRegs : kMost;
    table.kernel[static_cast<int>(x)][static_cast<int>(out)] = SpmmColumns<V, X, Out, kRegs>::run;
  };
  for_storage_pairs<F32, F64>(set);
  return table;
}

}  // namespace hpcgnn::kernels
