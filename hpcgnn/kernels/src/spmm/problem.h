/// The operands of one SpMM kernel call, and the tables of kernels by instruction set.
#pragma once

#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

/// A CSR-like matrix times a dense row-major matrix.
///
/// Row i holds the non-zeros [begin[i], end[i]) of `indices` and `values`. Rows longer than
/// `longest_row`, of negative length or outside [0, num_indices) are skipped.
struct SpmmProblem {
  const std::int64_t* begin;
  const std::int64_t* end;
  const std::int32_t* indices;
  const void* values;          ///< accumulator type; null = all ones
  const void* row_factors;     ///< the same, a factor of the sum of each row of `out`; null = ones
  const void* x;               ///< row indices[e] is read for non-zero e
  void* out;                   ///< row rows[i], or i, is written
  const std::int32_t* rows;    ///< null = identity
  const std::int64_t* counts;  ///< divisor of each row when `mean`; null = its number of non-zeros
  std::int64_t x_pitch;        ///< elements from one row of x to the next
  std::int64_t out_pitch;      ///< elements from one row of out to the next
  std::int64_t width;          ///< columns to compute
  std::uint64_t longest_row;
  std::int64_t num_indices;   ///< readable length of `indices`
  std::int64_t pattern_step;  ///< non-zeros of a row between two prefetches of the pattern
  bool long_rows;             ///< rows are long enough to be processed two at a time
  bool by_column;             ///< `values` belong to the rows of x, not to the non-zeros
  bool accumulate;            ///< add to `out` instead of overwriting it
  bool mean;                  ///< divide by `counts`; a zero count gives zero
  bool stream;                ///< write past the cache; rows of `out` begin on 64-byte boundaries
};

/// Compute rows [first_row, last_row); returns whether any was skipped.
using SpmmKernel = bool (*)(const SpmmProblem&, std::int64_t first_row, std::int64_t last_row);

/// Kernels by storage type of x and of out; null where the pair is not offered.
struct SpmmTable {
  SpmmKernel kernel[kNumStorages][kNumStorages];

  static const SpmmTable portable, avx2, avx512;  ///< see table_of
};

}  // namespace hpcgnn::kernels
