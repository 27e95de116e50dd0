/// Vertex covers of the off-diagonal blocks of a rank's rows: which rows to fetch, which to push.
#pragma once

#include <cstdint>

#include "pattern/pattern.h"

namespace hpcgnn::kernels {

/// The results of `vertex_cover`, in memory of the caller.
struct CoverResult {
  bool* fetched;               ///< num_columns: the column is in its block's cover
  bool* pushed;                ///< nnz: the entry's column is not, so its row is
  std::int64_t* fetched_rows;  ///< num_blocks: columns in the cover
  std::int64_t* pushed_rows;   ///< num_blocks: rows in the cover
  std::int64_t* lower_bound;   ///< num_blocks: size of a matching; no cover is smaller
};

/// Cover every entry of every block by its column or its row; block q holds the entries whose
/// column lies in [column_starts[q], column_starts[q + 1]).
///
/// Blocks of at most `limit` entries get a minimum cover (a maximum matching by Hopcroft and Karp,
/// then König's theorem), and of the minimum covers the one with most columns. Larger ones get a
/// cover by degrees in almost linear time, never larger than all columns. The result does not
/// depend on `num_threads`. Memory: 4 bytes per entry and 8 per column; and for each thread 4 bytes
/// per row and, for the largest block, 8 bytes per entry, 25 per vertex and 16 per column.
///
/// @pre the pattern is valid; column_starts ascends from 0 to num_columns; num_rows + num_columns
/// is below 2^31.
void vertex_cover(const Pattern& a, const std::int64_t* column_starts, std::int64_t num_blocks,
                  std::int64_t limit, int num_threads, const CoverResult& result);

}  // namespace hpcgnn::kernels
