/// One block as a bipartite graph, in scratch memory that is reused for each block.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "pattern/pattern.h"

namespace hpcgnn::kernels {

/// Largest sizes among the blocks that a `CoverGraph` must hold.
struct CoverSizes {
  std::int64_t num_rows = 0;      ///< rows of the whole pattern
  std::int64_t num_vertices = 0;  ///< columns and non-empty rows of one block
  std::int64_t num_columns = 0;   ///< columns of one block
  std::int64_t num_entries = 0;   ///< entries of one block
};

/// The graph of one block: vertices [0, num_columns) are its columns, the others its non-empty
/// rows, numbered in order of first appearance. Only the constructor allocates, so that nothing
/// throws in threads.
class CoverGraph {
 public:
  explicit CoverGraph(const CoverSizes& sizes);

  /// Load columns [first, last) of a pattern, given its transpose.
  void load(const Pattern& transposed, std::int64_t first, std::int64_t last);

  std::int32_t num_columns() const { return num_columns_; }
  std::int32_t num_rows() const { return num_vertices_ - num_columns_; }
  std::int32_t num_vertices() const { return num_vertices_; }
  std::int64_t begin(std::int32_t v) const { return offsets_[v]; }
  std::int64_t end(std::int32_t v) const { return offsets_[v + 1]; }
  std::int64_t degree(std::int32_t v) const { return end(v) - begin(v); }
  std::int32_t neighbour(std::int64_t position) const { return neighbours_[position]; }
  std::span<const std::int32_t> neighbours(std::int32_t v) const {
    return {neighbours_.get() + begin(v), neighbours_.get() + end(v)};
  }

  /// Scratch of the algorithms, of one element for each vertex.
  std::unique_ptr<std::int32_t[]> mate;       ///< matched neighbour, or -1
  std::unique_ptr<std::int32_t[]> queue;      ///< each algorithm fills it from the start
  std::unique_ptr<std::int64_t[]> remaining;  ///< degree among vertices not yet taken
  std::unique_ptr<bool[]> in_cover;

  /// Scratch of one element for each column.
  std::unique_ptr<std::int32_t[]> level;  ///< distance from a free column, or -1
  std::unique_ptr<std::int32_t[]> stack;
  std::unique_ptr<std::int64_t[]> cursor;

 private:
  void number_rows(const Pattern& transposed, std::int64_t first, std::int64_t last);
  void fill_rows();

  std::int32_t num_columns_ = 0, num_vertices_ = 0;
  std::unique_ptr<std::int64_t[]> offsets_;
  std::unique_ptr<std::int32_t[]> neighbours_;
  std::unique_ptr<std::int32_t[]> vertex_of_row_;  ///< -1 outside the current block
};

/// Make `graph.mate` a maximal matching and `graph.in_cover` a cover, and return the size of the
/// matching.
///
/// If a vertex has one uncovered entry left, its neighbour is taken into the cover, which is
/// optimal (Karp and Sipser's rule). Without such vertices, one is taken whose number of uncovered
/// entries is the largest up to a factor of two. A taken vertex is matched with its free neighbour
/// of fewest uncovered entries. O(entries + vertices x log of the largest degree).
std::int64_t cover_greedily(CoverGraph& graph);

/// Remove vertices from the cover whose neighbours are all covered, and replace it by all columns
/// or all rows if these are fewer.
void shrink_cover(CoverGraph& graph);

/// Enlarge the matching `graph.mate` to a maximum one, by Hopcroft and Karp, and mark the columns
/// that alternating paths from free columns reach in `graph.level` (>= 0).
void match_fully(CoverGraph& graph);

/// Mark in `graph.in_cover` the minimum cover with the most columns, by König's theorem.
/// @pre match_fully has run on the graph.
void cover_from_matching(CoverGraph& graph);

}  // namespace hpcgnn::kernels
