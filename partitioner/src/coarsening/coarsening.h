/// Coarsening: clusters of vertices become the vertices of a smaller hypergraph.
#pragma once

#include <span>
#include <vector>

#include "random.h"
#include "state/hypergraph.h"
#include "state/state.h"

namespace hpcgnn::volpart {

/// Coarsening ends before a level with fewer finer vertices per vertex than this.
inline constexpr double kLeastShrink = 1.1;

struct Clustering {
  /// Cluster of each vertex, numbered in order of each cluster's first vertex.
  std::vector<Vertex> cluster;
  Vertex num_clusters = 0;
};

/// Let each vertex join the neighbouring cluster that shares most small nets with it, if their
/// total weight is at most `max_weight` and both lie in one part. Stops at 2.5 vertices per
/// cluster: faster shrinking increases the volume of the result.
Clustering cluster_vertices(const Hypergraph& graph, std::span<const Part> part, Weight max_weight,
                            Random random);

/// The share of its pins that `graph` keeps when its clusters are contracted, without the merging
/// of equal nets; counted on a sample of the nets.
double kept_pins(const Hypergraph& graph, const Clustering& clustering);

/// Pins inside a net's owner vanish, as do nets left without pins; nets of one owner with equal
/// pins are merged. `graph` needs its pins, but not the nets of its vertices; the result's index of
/// nets is not built.
Hypergraph contract(const Hypergraph& graph, const Clustering& clustering);

}  // namespace hpcgnn::volpart
