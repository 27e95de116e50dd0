/// Rows of coded columns, decoded a block at a time, for kernels that read plain columns.
#pragma once

#include <algorithm>
#include <cstdint>

#include "coded/coded.h"

namespace hpcgnn::kernels {

/// Entries of a block, which together with the rows of the dense operand fit the private cache.
inline constexpr std::int64_t kBlockEntries = 8192;
/// Entries behind a block that are decoded, too, for kernels that look ahead.
inline constexpr std::int64_t kLookahead = 128;

/// The rows [first, last), of which row i has the entries [begin[i], end[i]).
struct RowRange {
  const std::int64_t* begin;
  const std::int64_t* end;
  std::int64_t first;
  std::int64_t last;
};

/// Call `body(indices, num_indices, first_row, last_row)` on blocks of rows in turn: `indices[e]`
/// is the column of each of their entries e. Rows of more than kBlockEntries, or with invalid
/// offsets, come alone, with num_indices 0.
///
/// @param indptr of the coded rows; those of `rows` may be parts of them.
template <class Body>
void for_blocks(const CodedColumns& columns, const std::int64_t* indptr, std::int64_t num_rows,
                const RowRange& rows, Isa isa, Body&& body) {
  std::int32_t decoded[kBlockEntries + kLookahead + 2 * kChunk + kSlack];
  for (std::int64_t row = rows.first; row < rows.last;) {
    const std::int64_t begin = rows.begin[row];
    std::int64_t end = begin, stop = row;
    if (begin >= 0 && begin <= columns.size()) {
      const std::int64_t limit = std::min(columns.size(), begin + kBlockEntries);
      while (stop < rows.last && rows.begin[stop] == end && rows.end[stop] >= end &&
             rows.end[stop] <= limit)
        end = rows.end[stop++];
    }
    if (stop == row) {
      body(decoded, std::int64_t{0}, row, row + 1);
      ++row;
      continue;
    }
    const std::int64_t known = std::min(columns.size(), end + kLookahead);
    const std::int64_t first_chunk = begin / kChunk, last_chunk = (known + kChunk - 1) / kChunk;
    columns.decode(indptr, num_rows, first_chunk, last_chunk, isa, decoded);
    // An integer, since this may lie outside the array: the first entries are not decoded.
    const auto address = reinterpret_cast<std::uintptr_t>(decoded) -
                         static_cast<std::uintptr_t>(first_chunk * kChunk) * sizeof(std::int32_t);
    body(reinterpret_cast<const std::int32_t*>(address), known, row, stop);
    row = stop;
  }
}

}  // namespace hpcgnn::kernels
