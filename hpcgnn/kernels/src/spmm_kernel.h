/// The SpMM kernel, a template over the SIMD types; included once per instruction set.
///
/// A block of up to `kBlocks` registers of output columns stays in registers while the non-zeros of
/// a row go by. Each output element is summed over its non-zeros in order, whatever the block, the
/// tile or the thread, so results depend only on the instruction set.
#pragma once

#include <utility>

#include "spmm_problem.h"

namespace hpcgnn::kernels {

/// `kRegs` registers of columns starting at `column`; with `kTail` the last one is partial.
template <class V, class X, class Out, int kRegs, bool kTail, bool kWeighted>
void spmm_block(const SpmmProblem& p, std::int64_t first_row, std::int64_t last_row,
                std::int64_t column, int tail_lanes) {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;
  constexpr int kFull = kTail ? kRegs - 1 : kRegs;
  constexpr std::int64_t kRowBytes = std::int64_t{kRegs} * V::kLanes * sizeof(X);
  constexpr std::int64_t kLines = (kRowBytes + 63) / 64;
  const auto tail = V::mask(tail_lanes);
  const std::int64_t width = p.width;
  const X* const x = static_cast<const X*>(p.x) + column;
  const Scalar* const values = static_cast<const Scalar*>(p.values);
  const std::int64_t distance = (p.prefetch_lines + kLines - 1) / kLines;
  const std::int64_t last_ahead = p.num_indices - distance;

  for (std::int64_t i = first_row; i < last_row; ++i) {
    const std::int64_t begin = p.begin[i], end = p.end[i];
    if (end - begin > p.longest_row) continue;
    Reg sum[kRegs];
    for (Reg& reg : sum) reg = V::zero();

    const auto add_nonzero = [&](std::int64_t e) __attribute__((always_inline)) {
      const X* const source = x + p.indices[e] * width;
      if constexpr (kWeighted) {
        const Reg value = V::broadcast(values[e]);
        for (int r = 0; r < kFull; ++r)
          sum[r] = V::fma(value, V::load(source + r * V::kLanes), sum[r]);
        if constexpr (kTail)
          sum[kFull] = V::fma(value, V::load(source + kFull * V::kLanes, tail), sum[kFull]);
      } else {
        for (int r = 0; r < kFull; ++r) sum[r] = V::add(V::load(source + r * V::kLanes), sum[r]);
        if constexpr (kTail)
          sum[kFull] = V::add(V::load(source + kFull * V::kLanes, tail), sum[kFull]);
      }
    };

    std::int64_t e = begin;
    for (const std::int64_t ahead_end = end < last_ahead ? end : last_ahead; e < ahead_end; ++e) {
      const char* const next = reinterpret_cast<const char*>(x + p.indices[e + distance] * width);
      for (std::int64_t line = 0; line < kLines; ++line) __builtin_prefetch(next + line * 64);
      add_nonzero(e);
    }
    for (; e < end; ++e) add_nonzero(e);

    if (p.counts != nullptr) {
      const std::int64_t count = p.counts[i];
      const Reg scale =
          V::broadcast(count > 0 ? Scalar(1) / static_cast<Scalar>(count) : Scalar(0));
      for (Reg& reg : sum) reg = V::mul(reg, scale);
    }
    Out* const out = static_cast<Out*>(p.out) + (p.rows ? p.rows[i] : i) * width + column;
    if (p.accumulate) {
      for (int r = 0; r < kFull; ++r) sum[r] = V::add(sum[r], V::load(out + r * V::kLanes));
      if constexpr (kTail) sum[kFull] = V::add(sum[kFull], V::load(out + kFull * V::kLanes, tail));
    }
    for (int r = 0; r < kFull; ++r) V::store(out + r * V::kLanes, sum[r]);
    if constexpr (kTail) V::store(out + kFull * V::kLanes, sum[kFull], tail);
  }
}

/// Cut the columns into register blocks and run each over the rows.
template <class V, class X, class Out, int kBlock>
struct SpmmColumns {
  using Block = void (*)(const SpmmProblem&, std::int64_t, std::int64_t, std::int64_t, int);

  template <bool kTail, bool kWeighted, int... kIndex>
  static void call(int regs, std::integer_sequence<int, kIndex...>, const SpmmProblem& p,
                   std::int64_t first_row, std::int64_t last_row, std::int64_t column, int tail) {
    static constexpr Block kTable[] = {spmm_block<V, X, Out, kIndex + 1, kTail, kWeighted>...};
    kTable[regs - 1](p, first_row, last_row, column, tail);
  }

  static void run(const SpmmProblem& p, std::int64_t first_row, std::int64_t last_row,
                  std::int64_t first_column, std::int64_t last_column) {
    constexpr auto kSequence = std::make_integer_sequence<int, kBlock>{};
    for (std::int64_t column = first_column; column < last_column;) {
      const std::int64_t left = last_column - column;
      const std::int64_t lanes = left < kBlock * V::kLanes ? left : kBlock * V::kLanes;
      const int regs = static_cast<int>((lanes + V::kLanes - 1) / V::kLanes);
      const int tail = static_cast<int>(lanes % V::kLanes);
      const auto invoke = [&]<bool kTail, bool kWeighted>() {
        call<kTail, kWeighted>(regs, kSequence, p, first_row, last_row, column, tail);
      };
      if (p.values != nullptr)
        tail ? invoke.template operator()<true, true>() : invoke.template operator()<false, true>();
      else
        tail ? invoke.template operator()<true, false>()
             : invoke.template operator()<false, false>();
      column += lanes;
    }
  }
};

/// The table of one instruction set; `kBlock` registers of sums fit beside the operands.
template <class F32, class F64, int kBlock>
constexpr SpmmTable make_spmm_table() {
  SpmmTable table{};
  const auto set = [&](Storage x, Storage out, SpmmKernel kernel) {
    table.kernel[static_cast<int>(x)][static_cast<int>(out)] = kernel;
  };
  set(Storage::kFloat32, Storage::kFloat32, SpmmColumns<F32, float, float, kBlock>::run);
  set(Storage::kFloat32, Storage::kBFloat16, SpmmColumns<F32, float, BFloat16, kBlock>::run);
  set(Storage::kFloat32, Storage::kFloat16, SpmmColumns<F32, float, Float16, kBlock>::run);
  set(Storage::kFloat64, Storage::kFloat64, SpmmColumns<F64, double, double, kBlock>::run);
  set(Storage::kBFloat16, Storage::kFloat32, SpmmColumns<F32, BFloat16, float, kBlock>::run);
  set(Storage::kBFloat16, Storage::kBFloat16, SpmmColumns<F32, BFloat16, BFloat16, kBlock>::run);
  set(Storage::kFloat16, Storage::kFloat32, SpmmColumns<F32, Float16, float, kBlock>::run);
  set(Storage::kFloat16, Storage::kFloat16, SpmmColumns<F32, Float16, Float16, kBlock>::run);
  return table;
}

}  // namespace hpcgnn::kernels
