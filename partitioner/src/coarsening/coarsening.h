/// Coarsening: clusters of vertices become the vertices of a smaller hypergraph.
#pragma once

#include <span>
#include <vector>

#include "random.h"
#include "state/hypergraph.h"
#include "state/state.h"

namespace hpcgnn::volpart {

/// Coarsening ends before a level of which a vertex has fewer finer ones.
inline constexpr double kLeastShrink = 1.1;

struct Clustering {
  /// Cluster of each vertex, numbered in order of each cluster's first vertex.
  std::vector<Vertex> cluster;
  Vertex num_clusters = 0;
};

/// Let each vertex join the neighbouring cluster that shares most small nets with it, if the sum
/// weighs at most `max_weight` and both lie in one part. Stops when 2.5 vertices a cluster are
/// reached: shrinking faster loses much in volume.
Clustering cluster_vertices(const Hypergraph& graph, std::span<const Part> part, Weight max_weight,
                            Random random);

/// The share of its pins that `graph` keeps when its clusters are contracted, without the merging
/// of equal nets; counted on a sample of the nets.
double kept_pins(const Hypergraph& graph, const Clustering& clustering);

/// Pins inside a net's owner vanish, and with them nets without any other; nets of one owner with
/// equal pins are merged. Of `graph` the pins are needed, the nets of vertices are not; those of
/// the result are still to be indexed.
Hypergraph contract(const Hypergraph& graph, const Clustering& clustering);

}  // namespace hpcgnn::volpart
