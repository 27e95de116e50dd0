/// Partitioning by passes over rows that need not be in memory: the state is of vertices and parts.
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
  /// @throws std::invalid_argument where offsets or columns do not fit `num_vertices`.
  void check(std::size_t num_vertices) const;
};

/// Put every vertex of the rows into the part with the most of its neighbours, times
/// 1 - (load / capacity)^16; into the least loaded one where no part with a neighbour has room.
/// Linear deterministic greedy (Stanton and Kliot, KDD 2012) has the exponent 1; passes after the
/// first are its restreaming (Nishimura and Ugander, KDD 2013).
///
/// `part` of all vertices, -1 for none yet, and `load` of all parts, the sum of the `work` of their
/// vertices, change.
/// @returns how many vertices moved. O(non-zeros + rows log parts).
template <class Index>
std::int64_t assign_rows(const StreamedRows<Index>& rows, std::span<const std::int64_t> work,
                         std::span<std::int32_t> part, std::span<std::int64_t> load,
                         double capacity);

inline constexpr int kMarked = 64;

/// Set bit q of `readers` of a vertex that a row of part `base` + q reads: vertices[i] is read by
/// part[i].
/// @throws std::invalid_argument where a vertex has no `readers`.
void mark_readers(std::span<const std::int64_t> vertices, std::span<const std::int32_t> part,
                  std::int32_t base, std::span<std::uint64_t> readers);

/// Add to counts[kMarked * p + q] the vertices of part p that another part, `base` + q, reads.
void count_readers(std::span<const std::uint64_t> readers, std::span<const std::int32_t> part,
                   std::int32_t base, std::span<std::int64_t> counts);

}  // namespace hpcgnn::volpart
