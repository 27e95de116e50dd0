/// What one SpMM kernel call works on, and the tables that hold the kernels of each instruction
/// set.
#pragma once

#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

/// A CSR-like matrix times a dense row-major matrix.
///
/// Row i holds the non-zeros [begin[i], end[i]) of `indices` and `values`. The dense operands have
/// `width` elements a row without padding. Results of rows longer than `longest_row` are left
/// alone.
struct SpmmProblem {
  const std::int64_t* begin;
  const std::int64_t* end;
  const std::int32_t* indices;
  const void* values;          ///< accumulator type; null = all ones
  const void* x;               ///< row indices[e] is read for non-zero e
  void* out;                   ///< row rows[i], or i, is written
  const std::int32_t* rows;    ///< null = identity
  const std::int64_t* counts;  ///< divides row i by counts[i] (a zero count gives zero); null = no
  std::int64_t width;
  std::int64_t longest_row;
  std::int64_t num_indices;  ///< readable length of `indices`; prefetch looks no further
  std::int64_t prefetch_lines;
  bool accumulate;  ///< add to `out` instead of overwriting it
};

/// Compute columns [first_column, last_column) of rows [first_row, last_row).
/// first_column is a multiple of 64 bytes of x, or 0.
using SpmmKernel = void (*)(const SpmmProblem&, std::int64_t first_row, std::int64_t last_row,
                            std::int64_t first_column, std::int64_t last_column);

/// Kernels by storage type of x and of out; null where the pair is not offered.
struct SpmmTable {
  SpmmKernel kernel[kNumStorages][kNumStorages];
};

extern const SpmmTable kSpmmPortable;
#ifdef HPCGNN_X86
extern const SpmmTable kSpmmAvx2;
extern const SpmmTable kSpmmAvx512;
#endif

}  // namespace hpcgnn::kernels
