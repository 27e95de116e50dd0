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

/// Transpose: out_indptr[num_columns + 1], out_indices[nnz] (row numbers, ascending inside a
/// column), source[nnz] (position of each entry in the original; not wanted if null). O(nnz +
/// num_columns) per thread.
void transpose_csr(const Pattern& a, std::int64_t* out_indptr, std::int32_t* out_indices,
                   std::int64_t* source, int num_threads);

/// out[i] = values[source[i]], elements of `element_bytes` (4 or 8).
void permute_values(const void* values, const std::int64_t* source, std::int64_t count,
                    int element_bytes, void* out, int num_threads);

/// Values of the transpose of a matrix whose pattern is symmetric, in one pass (graph-sampling
/// paper, Algorithm 6): entry (i, j) is the next one of row j of the transpose, as rows i come in
/// order. O(nnz) time, one cursor a row. Elements of `element_bytes` (4 or 8).
/// @pre columns ascend inside each row.
/// @throws std::invalid_argument when a column has more entries than its row: no symmetric pattern.
void transpose_values_symmetric(const Pattern& a, const void* values, int element_bytes, void* out);

}  // namespace hpcgnn::kernels
