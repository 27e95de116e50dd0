/// A small approximation of the input graph, for which another library makes an initial partition.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "volpart/csr.h"
#include "volpart/metrics.h"

namespace hpcgnn::volpart {

/// Larger edge weights are reduced to this.
inline constexpr std::int32_t kMaxEdgeWeight = 1 << 20;

/// An undirected graph of clusters of rows: both directions of every edge are stored, no loops.
struct Sketch {
  std::vector<std::int32_t> cluster;  ///< Cluster of each row.
  std::vector<std::int64_t> indptr;
  std::vector<std::int32_t> indices;
  std::vector<std::int32_t> edge_weight;    ///< Expected number of nets between two clusters.
  std::vector<std::int64_t> vertex_weight;  ///< Total weight of each cluster's rows.
};

/// Cluster rows, in at most three levels, until at most `max_edges` non-zeros are left; then sample
/// the edges down to about that many. An edge is kept with a probability proportional to its weight
/// times the sum of the reciprocal degrees of its ends, and its weight is divided by the
/// probability: the expected weight of every cut is unchanged, and vertices with few edges keep
/// them.
///
/// @param[in] weights Weight of each row; empty means its non-zeros.
/// @throws std::invalid_argument for a malformed CSR, weights of another length, or parts outside
/// [1, kMaxParts].
Sketch sketch(const CsrView& csr, int num_parts, std::span<const std::int64_t> weights,
              std::int64_t max_edges, std::uint64_t seed);

}  // namespace hpcgnn::volpart
