/// Steps of clustering a distributed graph.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hpcgnn::volpart {

/// Rows of an undirected weighted graph. Columns are local numbers: first the process's own
/// vertices, then those of other processes.
struct GraphRows {
  std::span<const std::int64_t> indptr;
  std::span<const std::int32_t> columns;
  std::span<const std::int32_t> edges;  ///< Weights; 0 means no edge.
  /// For each column: the reciprocal of the sum of the weights of its edges.
  std::span<const double> share;
};

/// The cluster with the strongest connection to each vertex in `asks`, among clusters of open
/// columns; -1 if there is none. An edge counts with its weight times the shares of both ends. Ties
/// are broken by a hash.
/// @param[in] cluster,open For each column: its cluster, and whether that may be joined.
/// @throws std::invalid_argument for inconsistent arrays.
std::vector<std::int64_t> best_cluster(const GraphRows& graph,
                                       std::span<const std::int64_t> cluster,
                                       std::span<const std::uint8_t> open,
                                       std::span<const std::uint8_t> asks, std::uint64_t seed);

/// Rows of a graph whose edges are to be sampled. Column c is vertex names[c], or vertex c if
/// `names` is empty; row r is vertex first + r.
template <class Index>
struct SampledRows {
  std::span<const std::int64_t> indptr;
  std::span<const Index> columns;
  std::span<const std::int32_t> edges;  ///< Weights, 0 for no edge; empty means 1 each.
  std::span<const std::int64_t> names;
  std::int64_t first = 0;
  /// For each row and each column: the reciprocal of the sum of the weights of its edges.
  std::span<const double> row_share, share;
};

/// Sampled edges in the order of their rows. The expectation of a weight w / chance is w.
template <class Index>
struct EdgeSample {
  std::vector<std::int32_t> row;
  std::vector<Index> column;
  std::vector<std::int32_t> edges;
};

/// Keep an edge of weight w with chance min(1, density * w * (share of its row + of its column)),
/// with weight w / chance, at most `heaviest`. Loops are dropped. Both directions of an edge are
/// kept or dropped together, even on different processes.
/// @throws std::invalid_argument for inconsistent arrays.
template <class Index>
EdgeSample<Index> sample_edges(const SampledRows<Index>& rows, double density,
                               std::int32_t heaviest, std::uint64_t seed);

}  // namespace hpcgnn::volpart
