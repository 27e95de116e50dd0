#include "cover/graph.h"

#include <algorithm>

namespace hpcgnn::kernels {
namespace {

template <class T>
std::unique_ptr<T[]> scratch(std::int64_t size) {
  return std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(size));
}

}  // namespace

CoverGraph::CoverGraph(const CoverSizes& sizes)
    : mate(scratch<std::int32_t>(sizes.num_vertices)),
      queue(scratch<std::int32_t>(sizes.num_vertices)),
      remaining(scratch<std::int64_t>(sizes.num_vertices)),
      in_cover(scratch<bool>(sizes.num_vertices)),
      level(scratch<std::int32_t>(sizes.num_columns)),
      stack(scratch<std::int32_t>(sizes.num_columns)),
      cursor(scratch<std::int64_t>(sizes.num_columns)),
      offsets_(scratch<std::int64_t>(sizes.num_vertices + 1)),
      neighbours_(scratch<std::int32_t>(2 * sizes.num_entries)),
      vertex_of_row_(scratch<std::int32_t>(sizes.num_rows)) {
  std::fill_n(vertex_of_row_.get(), sizes.num_rows, -1);
}

void CoverGraph::load(const Pattern& transposed, std::int64_t first, std::int64_t last) {
  num_columns_ = static_cast<std::int32_t>(last - first);
  const std::int64_t base = transposed.indptr[first];
  for (std::int64_t c = first; c <= last; ++c) offsets_[c - first] = transposed.indptr[c] - base;
  number_rows(transposed, base, transposed.indptr[last]);
  fill_rows();
}

/// Write the rows of entries [first, last) as vertices, counting degrees into `remaining`.
void CoverGraph::number_rows(const Pattern& transposed, std::int64_t first, std::int64_t last) {
  num_vertices_ = num_columns_;
  for (std::int64_t e = first; e < last; ++e) {
    std::int32_t& vertex = vertex_of_row_[transposed.indices[e]];
    if (vertex < 0) {
      vertex = num_vertices_++;
      remaining[vertex] = 0;
    }
    ++remaining[vertex];
    neighbours_[e - first] = vertex;
  }
  for (std::int64_t e = first; e < last; ++e) vertex_of_row_[transposed.indices[e]] = -1;
}

/// Append the adjacency of the rows to that of the columns, with `remaining` as write positions.
void CoverGraph::fill_rows() {
  for (std::int32_t v = num_columns_; v < num_vertices_; ++v) {
    const std::int64_t count = remaining[v];
    remaining[v] = offsets_[v];
    offsets_[v + 1] = offsets_[v] + count;
  }
  for (std::int32_t c = 0; c < num_columns_; ++c)
    for (const std::int32_t row : neighbours(c)) neighbours_[remaining[row]++] = c;
}

}  // namespace hpcgnn::kernels
