/// Steps of clustering a graph that is spread over processes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hpcgnn::volpart {

/// Rows of an undirected weighted graph. Columns are local numbers of the process's own vertices,
/// then of those of others.
struct GraphRows {
  std::span<const std::int64_t> indptr;
  std::span<const std::int32_t> columns;
  std::span<const std::int32_t> edges;  ///< Weights; an entry of weight 0 is none.
  /// Of each column: the reciprocal of the sum of the weights of its edges.
  std::span<const double> share;
};

/// The cluster that each vertex in `asks` is connected with most, by the weights of its edges times
/// the shares of both their ends, among those of open columns; -1 where there is none. Equal
/// connections are decided by a hash.
/// @param[in] cluster,open Of each column: its cluster, and whether it may be joined.
/// @throws std::invalid_argument for arrays that do not fit each other.
std::vector<std::int64_t> best_cluster(const GraphRows& graph,
                                       std::span<const std::int64_t> cluster,
                                       std::span<const std::uint8_t> open,
                                       std::span<const std::uint8_t> asks, std::uint64_t seed);

/// Rows of a graph of which edges are sampled. Column c stands for the vertex names[c], or for c
/// itself where `names` is empty; row r for the vertex first + r.
template <class Index>
struct SampledRows {
  std::span<const std::int64_t> indptr;
  std::span<const Index> columns;
  std::span<const std::int32_t> edges;  ///< Weights, 0 for no edge; empty means 1 each.
  std::span<const std::int64_t> names;
  std::int64_t first = 0;
  /// Of each row and of each column: the reciprocal of the sum of the weights of its edges.
  std::span<const double> row_share, share;
};

/// Edges in the order of their rows. Of all weights w / chance the mean over all seeds is w.
template <class Index>
struct EdgeSample {
  std::vector<std::int32_t> row;
  std::vector<Index> column;
  std::vector<std::int32_t> edges;
};

/// Keep an edge of weight w with chance min(1, density * w * (share of its row + of its column)),
/// at weight w / chance, at most `heaviest`. Loops are dropped. Both directions of an edge, on
/// whichever process, stay or go together.
/// @throws std::invalid_argument for arrays that do not fit each other.
template <class Index>
EdgeSample<Index> sample_edges(const SampledRows<Index>& rows, double density,
                               std::int32_t heaviest, std::uint64_t seed);

}  // namespace hpcgnn::volpart
