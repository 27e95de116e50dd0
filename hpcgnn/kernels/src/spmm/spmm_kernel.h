/// The SpMM kernel, a template over the SIMD types; included once per instruction set.
///
/// A block of columns stays in registers while the non-zeros of a row go by: where the registers
/// hold the whole row, x is read in the pattern that hardware likes best, and the pattern once.
/// Each output element is summed over its non-zeros in order, whatever the block, the tile or the
/// thread, so results depend only on the instruction set.
#pragma once

#include "simd/storages.h"
#include "spmm/problem.h"

namespace hpcgnn::kernels {

// Measured: a core keeps about this many line fills on their way before prefetches are dropped.
inline constexpr std::int64_t kPrefetchLines = 96;
// Among the rows of x the hardware loses track of the pattern and its values: their lines are asked
// for this many non-zeros ahead.
inline constexpr std::int64_t kPatternDistance = 512;

/// Ask for the line of an element that may lie behind the end of its array.
template <class T>
HPCGNN_INLINE void prefetch_far(const T* array, std::int64_t element) {
  const auto address = reinterpret_cast<std::uintptr_t>(array);
  __builtin_prefetch(
      reinterpret_cast<const void*>(address + static_cast<std::uintptr_t>(element) * sizeof(T)));
}

/// Whether a row lies in the pattern and is not too long; one branch, since all rows are asked.
HPCGNN_INLINE bool row_is_sound(const SpmmProblem& p, std::int64_t begin, std::int64_t end) {
  const auto first = static_cast<std::uint64_t>(begin), last = static_cast<std::uint64_t>(end);
  return (first <= last) & (last <= static_cast<std::uint64_t>(p.num_indices)) &
         (last - first <= p.longest_row);
}

/// `kRegs` registers of columns starting at `column`; with `kTail` the last one is partial.
template <class V, class X, class Out, int kRegs, bool kTail, bool kWeighted>
bool spmm_block(const SpmmProblem& problem, std::int64_t first_row, std::int64_t last_row,
                std::int64_t column, int tail_lanes) {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;
  constexpr int kFull = kTail ? kRegs - 1 : kRegs;
  constexpr std::int64_t kBytes = std::int64_t{kRegs} * V::kLanes * sizeof(X);
  constexpr std::int64_t kLines = (kBytes + 63) / 64;
  constexpr std::int64_t kDistance = (kPrefetchLines + kLines - 1) / kLines;
  const auto tail = V::mask(tail_lanes);
  // A copy that no store can alias stays in registers.
  const SpmmProblem p = problem;
  const X* const x = static_cast<const X*>(p.x) + column;
  Out* const out = static_cast<Out*>(p.out) + column;
  const Scalar* const values = static_cast<const Scalar*>(p.values);
  const Scalar* const row_factors = static_cast<const Scalar*>(p.row_factors);
  bool skipped = false;

  for (std::int64_t i = first_row; i < last_row; ++i) {
    const std::int64_t begin = p.begin[i], end = p.end[i];
    if (!row_is_sound(p, begin, end)) {
      skipped = true;
      continue;
    }
    Reg sum[kRegs];
    for (Reg& reg : sum) reg = V::zero();

    // Rows near the end of the pattern have nothing to look ahead to but themselves.
    const std::int32_t* const ahead =
        p.indices + (end + kDistance <= p.num_indices ? kDistance : 0);
    for (std::int64_t e = begin; e < end;) {
      const std::int64_t stop = end - e < p.pattern_step ? end : e + p.pattern_step;
      prefetch_far(p.indices, e + kDistance + kPatternDistance);
      if constexpr (kWeighted)
        if (!p.by_column) prefetch_far(values, e + kPatternDistance);
      for (; e < stop; ++e) {
        const char* const next = reinterpret_cast<const char*>(x + ahead[e] * p.x_pitch);
        for (std::int64_t line = 0; line < kLines; ++line) __builtin_prefetch(next + line * 64);
        const X* const source = x + p.indices[e] * p.x_pitch;
        if constexpr (kWeighted) {
          const Reg value = V::broadcast(values[p.by_column ? p.indices[e] : e]);
          for (int r = 0; r < kFull; ++r)
            sum[r] = V::fma(value, V::load(source + r * V::kLanes), sum[r]);
          if constexpr (kTail)
            sum[kFull] = V::fma(value, V::load(source + kFull * V::kLanes, tail), sum[kFull]);
        } else {
          for (int r = 0; r < kFull; ++r) sum[r] = V::add(V::load(source + r * V::kLanes), sum[r]);
          if constexpr (kTail)
            sum[kFull] = V::add(V::load(source + kFull * V::kLanes, tail), sum[kFull]);
        }
      }
    }

    if (p.mean) {
      const std::int64_t count = p.counts ? p.counts[i] : end - begin;
      const Reg scale =
          V::broadcast(count > 0 ? Scalar(1) / static_cast<Scalar>(count) : Scalar(0));
      for (Reg& reg : sum) reg = V::mul(reg, scale);
    }
    const std::int64_t out_row = p.rows ? p.rows[i] : i;
    if (row_factors) {
      const Reg factor = V::broadcast(row_factors[out_row]);
      for (Reg& reg : sum) reg = V::mul(reg, factor);
    }
    Out* const target = out + out_row * p.out_pitch;
    if (p.accumulate) {
      for (int r = 0; r < kFull; ++r) sum[r] = V::add(sum[r], V::load(target + r * V::kLanes));
      if constexpr (kTail)
        sum[kFull] = V::add(sum[kFull], V::load(target + kFull * V::kLanes, tail));
    }
    if (p.stream) {
      for (int r = 0; r < kFull; ++r) V::stream(target + r * V::kLanes, sum[r]);
    } else {
      for (int r = 0; r < kFull; ++r) V::store(target + r * V::kLanes, sum[r]);
    }
    if constexpr (kTail) V::store(target + kFull * V::kLanes, sum[kFull], tail);
  }
  return skipped;
}

/// Cuts the columns into register blocks and runs each over the rows.
template <class V, class X, class Out, int kMaxRegs>
struct SpmmColumns {
  /// The next smaller size of a block: few sizes beyond eight are worth compiling.
  static constexpr int below(int regs) { return regs > 12 ? 12 : regs > 8 ? 8 : regs - 1; }

  /// Runs the largest block that `wanted` registers fill; returns its registers.
  template <int kRegs = kMaxRegs>
  static int block(std::int64_t wanted, const SpmmProblem& p, std::int64_t first_row,
                   std::int64_t last_row, std::int64_t column, bool& skipped) {
    if constexpr (kRegs > 1)
      if (wanted < kRegs)
        return block<below(kRegs)>(wanted, p, first_row, last_row, column, skipped);
    const std::int64_t left = p.width - column;
    const auto run = [&]<bool kTail>(int tail) {
      return p.values != nullptr
                 ? spmm_block<V, X, Out, kRegs, kTail, true>(p, first_row, last_row, column, tail)
                 : spmm_block<V, X, Out, kRegs, kTail, false>(p, first_row, last_row, column, tail);
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
