/// Checks of CSR patterns.
#pragma once

#include <cstdint>

namespace hpcgnn::kernels {

/// @throws std::invalid_argument unless `indptr` starts at 0, never decreases and ends at
/// `num_nonzeros`. O(num_rows).
void check_indptr(const std::int64_t* indptr, std::int64_t num_rows, std::int64_t num_nonzeros);

/// @throws std::invalid_argument naming `name` unless all `count` indices are in [0, limit).
void check_range(const char* name, const std::int32_t* indices, std::int64_t count,
                 std::int64_t limit);

/// @throws std::invalid_argument naming a row unless its columns ascend without repeats.
/// @pre check_indptr holds. O(num_nonzeros).
void check_sorted(const std::int64_t* indptr, const std::int32_t* indices, std::int64_t num_rows);

/// A CSR pattern with int32 columns, each in [0, num_columns).
struct Pattern {
  const std::int64_t* indptr;  ///< num_rows + 1 offsets from 0, non-decreasing
  const std::int32_t* indices;
  std::int64_t num_rows;
  std::int64_t num_columns;
};

/// The results of a transposition.
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
/// paper, Algorithm 6): since rows i come in order, entry (i, j) is the next one of row j of the
/// transpose. O(nnz) time, one cursor for each row. Elements of `element_bytes` (4 or 8).
/// @pre columns ascend inside each row.
/// @throws std::invalid_argument if a column has more entries than its row: not symmetric.
void transpose_values_symmetric(const Pattern& a, const void* values, int element_bytes, void* out);

/// Which entries to keep. An entry is kept when its row, its column and its own mark allow it.
struct Selection {
  const std::int64_t* indptr;   ///< num_rows + 1 offsets from 0, non-decreasing
  const std::int32_t* indices;  ///< columns, each a position in `columns`
  std::int64_t num_rows;
  const std::int32_t* columns;  ///< new number of each column, negative to drop it
  const bool* rows;             ///< num_rows: rows to keep; null for all
  const bool* entries;          ///< nnz: entries to keep; null for all
};

/// counts[i] = kept entries of row i.
void count_selected(const Selection& s, std::int64_t* counts);

/// The results of a selection: the kept entries of all rows in order.
struct Selected {
  std::int32_t* indices;
  void* values;  ///< null when there are no values
};

/// @pre `out` has room for the sum of count_selected. Values have `element_bytes` (4 or 8).
void copy_selected(const Selection& s, const void* values, int element_bytes, const Selected& out);

}  // namespace hpcgnn::kernels
