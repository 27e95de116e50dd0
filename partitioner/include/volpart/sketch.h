/// A small graph that stands for the input where another library makes a start.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "volpart/csr.h"
#include "volpart/metrics.h"

namespace hpcgnn::volpart {

/// Edge weights above this are cut down to it.
inline constexpr std::int32_t kMaxEdgeWeight = 1 << 20;

/// An undirected graph of clusters of rows: both directions of every edge are stored, no loops.
struct Sketch {
  std::vector<std::int32_t> cluster;  ///< Of each row.
  std::vector<std::int64_t> indptr;
  std::vector<std::int32_t> indices;
  std::vector<std::int32_t> edge_weight;    ///< Nets that join the two clusters, as expected.
  std::vector<std::int64_t> vertex_weight;  ///< Of the rows of each cluster together.
};

/// Cluster rows, in at most three levels, until no more than `max_edges` non-zeros are left; then
/// sample the edges so that about that many stay. An edge stays with a probability proportional to
/// its weight times the sum of the reciprocal degrees of its ends, and its weight is divided by
/// that: every cut keeps the weight it had, in the mean, and vertices with few edges keep them.
///
/// @param[in] weights Weight of each row; empty means its non-zeros.
/// @throws std::invalid_argument for a malformed CSR, weights that do not fit it, or parts outside
/// [1, kMaxParts].
Sketch sketch(const CsrView& csr, int num_parts, std::span<const std::int64_t> weights,
              std::int64_t max_edges, std::uint64_t seed);

}  // namespace hpcgnn::volpart
