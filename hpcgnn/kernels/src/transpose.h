/// Transposition of CSR matrices.
#pragma once

#include <cstdint>

namespace hpcgnn::kernels {

/// A CSR pattern with int32 columns, each in [0, num_columns).
struct Pattern {
  const std::int64_t* indptr;  ///< num_rows + 1 offsets from 0, non-decreasing
  const std::int32_t* indices;
  std::int64_t num_rows;
  std::int64_t num_columns;
};

/// What a transposition writes.
struct Transposed {
  std::int64_t* indptr;   ///< num_columns + 1
  std::int32_t* indices;  ///< nnz row numbers, ascending inside a column
  void* values;           ///< nnz elements; null when there are no values
  std::int64_t* source;   ///< nnz positions in the original; null when not wanted
};

/// Transpose a matrix with `values` (null for none) of `element_bytes` (4 or 8). O(nnz +
/// num_columns) per thread.
void transpose_csr(const Pattern& a, const void* values, int element_bytes, const Transposed& out,
                   int num_threads);

/// Values of the transpose of a matrix whose pattern is symmetric, in one pass (graph-sampling
/// paper, Algorithm 6): entry (i, j) is the next one of row j of the transpose, as rows i come in
/// order. O(nnz) time, one cursor a row. Elements of `element_bytes` (4 or 8).
/// @pre columns ascend inside each row.
/// @throws std::invalid_argument when a column has more entries than its row: no symmetric pattern.
void transpose_values_symmetric(const Pattern& a, const void* values, int element_bytes, void* out);

}  // namespace hpcgnn::kernels
