/// Some entries of a CSR matrix, with rows and columns numbered anew.
#pragma once

#include <cstdint>

namespace hpcgnn::kernels {

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

/// What a selection writes: the kept entries of all rows in order.
struct Selected {
  std::int32_t* indices;
  void* values;  ///< null when there are no values
};

/// @pre `out` has room for the sum of count_selected. Values have `element_bytes` (4 or 8).
void copy_selected(const Selection& s, const void* values, int element_bytes, const Selected& out);

}  // namespace hpcgnn::kernels
