/// CSR times dense matrix, on the CPU.
#pragma once

#include <cstdint>

#include "coded/coded.h"
#include "types.h"

namespace hpcgnn::kernels {

/// out[rows[i]] (+)= sum over the non-zeros e of row i of values[e] * x[indices[e]].
///
/// Entries that are products of a row factor and a column factor are not stored: they are
/// `row_factors[rows[i]] * column_factors[indices[e]]`.
struct SpmmArguments {
  const std::int64_t* indptr;   ///< num_rows + 1 offsets, non-decreasing
  const std::int32_t* indices;  ///< num_nonzeros rows of x, each in [0, num_x_rows)
  const CodedColumns* coded;    ///< used in place of `indices`, with equal results; null = none
  const void* values;           ///< accumulator type of x; null = all ones
  const void* row_factors;      ///< the same type, of each row of out; null = ones
  const void* column_factors;   ///< the same type, of each row of x, without values; null = ones
  const void* x;                ///< num_x_rows by width, row-major, no padding
  void* out;                    ///< row-major, no padding, not overlapping x
  const std::int32_t* rows;     ///< row of out for each row, without repeats; null = identity
  std::int64_t num_rows;
  std::int64_t num_nonzeros;
  std::int64_t num_x_rows;
  std::int64_t width;
  Storage x_storage;
  Storage out_storage;
  bool accumulate;  ///< add to `out` instead of overwriting it
  bool mean;        ///< divide row i by its number of non-zeros; empty rows give zero
  int num_threads;  ///< 0 = OpenMP default
  Isa isa;
};

/// True when the pair of storage types has a kernel: equal types, or float32 on one side.
bool spmm_supports(Storage x, Storage out);

/// Multiply. Rows are cut into chunks by non-zeros, rows too long for one chunk into segments of
/// fixed length whose partial sums are added in order: results do not depend on `num_threads`.
void spmm(const SpmmArguments& arguments);

}  // namespace hpcgnn::kernels
