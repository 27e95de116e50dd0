/// Transposed CSR times dense matrix, without the transpose.
#pragma once

#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

/// out[indices[e]] (+)= values[e] * x[rows[i]], over the non-zeros e of every row i.
struct SpmmTransposeArguments {
  const std::int64_t* indptr;   ///< num_rows + 1 offsets, non-decreasing, from 0
  const std::int32_t* indices;  ///< rows of out, each in [0, num_out_rows)
  const void* values;           ///< type of out; null = all ones
  const void* x;                ///< row-major, no padding
  void* out;                    ///< num_out_rows by width, row-major, no padding, not overlapping x
  const std::int32_t* rows;     ///< row of x for each row of the matrix; null = identity
  std::int64_t num_rows;
  std::int64_t num_nonzeros;
  std::int64_t num_out_rows;
  std::int64_t width;
  Storage x_storage;  ///< out has the accumulator type of this
  bool accumulate;    ///< add to `out` instead of overwriting it
  bool mean;          ///< the transpose of the row-mean product: row i counts 1 / length
  int num_threads;    ///< 0 = OpenMP default; at most one per cache line of a row of out
  Isa isa;
};

/// Multiply. Each thread owns some columns of `out` and adds to them in the order of the rows, so
/// results do not depend on `num_threads`.
void spmm_transpose(const SpmmTransposeArguments& arguments);

/// The operands of the kernel of an instruction set: columns of SpmmTransposeArguments.
struct SpmmTransposeProblem {
  const SpmmTransposeArguments* arguments;
  std::int64_t first_column;
  std::int64_t last_column;
  bool prefetch;  ///< fetch rows of out ahead: the cache may not hold them
};

/// Kernels by storage type of x.
struct SpmmTransposeTable {
  void (*kernel[kNumStorages])(const SpmmTransposeProblem&);

  static const SpmmTransposeTable portable, avx2, avx512;  ///< see table_of
};

}  // namespace hpcgnn::kernels
