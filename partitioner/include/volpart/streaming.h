/// Streaming partitioning: passes over rows; only the state of vertices and parts is in memory.
#pragma once

#include <cstdint>
#include <span>

namespace hpcgnn::volpart {

/// Consecutive rows of a graph, from vertex `first` on; columns, the neighbours, are global.
template <class Index>
struct StreamedRows {
  std::int64_t first = 0;
  std::span<const std::int64_t> indptr;
  std::span<const Index> columns;

  std::int64_t num_rows() const { return static_cast<std::int64_t>(indptr.size()) - 1; }
  /// @throws std::invalid_argument if offsets or columns are inconsistent with `num_vertices`.
  void check(std::size_t num_vertices) const;
};

/// Put every vertex of the rows into the part with the most of its neighbours, times
/// 1 - (load / capacity)^16; into the least loaded part if no part with a neighbour has room.
/// Linear deterministic greedy (Stanton and Kliot, KDD 2012) has the exponent 1; passes after the
/// first are restreaming (Nishimura and Ugander, KDD 2013).
///
/// Updates `part` of all vertices (-1: none yet), and `load` of all parts, the sum of the `work` of
/// their vertices.
/// @returns the number of moved vertices. O(non-zeros + rows log parts).
template <class Index>
std::int64_t assign_rows(const StreamedRows<Index>& rows, std::span<const std::int64_t> work,
                         std::span<std::int32_t> part, std::span<std::int64_t> load,
                         double capacity);

inline constexpr int kMarked = 64;

/// Set bit q of `readers` of each vertex that is read by a row of part `base` + q; part[i] reads
/// vertices[i].
/// @throws std::invalid_argument if a vertex is out of the range of `readers`.
void mark_readers(std::span<const std::int64_t> vertices, std::span<const std::int32_t> part,
                  std::int32_t base, std::span<std::uint64_t> readers);

/// Add to counts[kMarked * p + q] the vertices of part p that are read by another part, `base` + q.
void count_readers(std::span<const std::uint64_t> readers, std::span<const std::int32_t> part,
                   std::int32_t base, std::span<std::int64_t> counts);

}  // namespace hpcgnn::volpart
