/// The transposed product, a template over the SIMD types; included once per instruction set.
#pragma once

#include "spmm/transpose.h"

namespace hpcgnn::kernels {

/// `kRegs` registers of columns starting at `column`, a row of x at a time; with `kTail` the last
/// one is partial.
template <class V, class X, int kRegs, bool kTail>
void spmm_transpose_block(const SpmmTransposeProblem& problem, std::int64_t column,
                          int tail_lanes) {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;
  constexpr int kFull = kTail ? kRegs - 1 : kRegs;
  constexpr std::int64_t kLines = (std::int64_t{kRegs} * V::kLanes * sizeof(Scalar) + 63) / 64;
  constexpr std::int64_t kDistance = (64 + kLines - 1) / kLines;
  const auto tail = V::mask(tail_lanes);
  // These copies stay in registers, because no store can alias them.
  const SpmmTransposeArguments a = *problem.arguments;
  const bool prefetch = problem.prefetch;
  const X* const x = static_cast<const X*>(a.x) + column;
  Scalar* const out = static_cast<Scalar*>(a.out) + column;
  const Scalar* const values = static_cast<const Scalar*>(a.values);

  for (std::int64_t i = 0; i < a.num_rows; ++i) {
    const std::int64_t begin = a.indptr[i], end = a.indptr[i + 1];
    if (begin == end) continue;
    const X* const source = x + (a.rows ? a.rows[i] : i) * a.width;
    const Reg scale = V::broadcast(a.mean ? Scalar(1) / static_cast<Scalar>(end - begin) : 1);
    Reg row[kRegs];
    for (int r = 0; r < kFull; ++r) row[r] = V::mul(scale, V::load(source + r * V::kLanes));
    if constexpr (kTail) row[kFull] = V::mul(scale, V::load(source + kFull * V::kLanes, tail));

    const std::int32_t* const ahead =
        a.indices + (end + kDistance <= a.num_nonzeros ? kDistance : 0);
    for (std::int64_t e = begin; e < end; ++e) {
      if (prefetch) {
        const char* const next = reinterpret_cast<const char*>(out + ahead[e] * a.width);
        for (std::int64_t line = 0; line < kLines; ++line) __builtin_prefetch(next + line * 64, 1);
      }
      Scalar* const target = out + a.indices[e] * a.width;
      const Reg value = V::broadcast(values ? values[e] : Scalar(1));
      for (int r = 0; r < kFull; ++r)
        V::store(target + r * V::kLanes, V::fma(value, row[r], V::load(target + r * V::kLanes)));
      if constexpr (kTail)
        V::store(target + kFull * V::kLanes,
                 V::fma(value, row[kFull], V::load(target + kFull * V::kLanes, tail)), tail);
    }
  }
}

/// Cuts the columns of one thread into register blocks.
template <class V, class X>
struct SpmmTransposeColumns {
  static constexpr int kMaxRegs = 8;

  template <int kRegs>
  static void block(int regs, const SpmmTransposeProblem& p, std::int64_t column, int tail) {
    if (regs == kRegs)
      tail > 0 ? spmm_transpose_block<V, X, kRegs, true>(p, column, tail)
               : spmm_transpose_block<V, X, kRegs, false>(p, column, 0);
    else if constexpr (kRegs > 1)
      block<kRegs - 1>(regs, p, column, tail);
  }

  static void run(const SpmmTransposeProblem& p) {
    for (std::int64_t column = p.first_column; column < p.last_column;) {
      const std::int64_t left = p.last_column - column;
      const std::int64_t wanted = (left + V::kLanes - 1) / V::kLanes;
      const int regs = wanted < kMaxRegs ? static_cast<int>(wanted) : kMaxRegs;
      const std::int64_t lanes = std::int64_t{regs} * V::kLanes;
      block<kMaxRegs>(regs, p, column, left < lanes ? static_cast<int>(left % V::kLanes) : 0);
      column += lanes;
    }
  }
};

template <class F32, class F64>
constexpr SpmmTransposeTable make_table() {
  SpmmTransposeTable table{};
  table.kernel[static_cast<int>(Storage::kFloat32)] = SpmmTransposeColumns<F32, float>::run;
  table.kernel[static_cast<int>(Storage::kFloat64)] = SpmmTransposeColumns<F64, double>::run;
  table.kernel[static_cast<int>(Storage::kBFloat16)] = SpmmTransposeColumns<F32, BFloat16>::run;
  table.kernel[static_cast<int>(Storage::kFloat16)] = SpmmTransposeColumns<F32, Float16>::run;
  return table;
}

}  // namespace hpcgnn::kernels
