/// Initial partitions of a small hypergraph.
#pragma once

#include <vector>

#include "random.h"
#include "state/hypergraph.h"
#include "state/state.h"

namespace hpcgnn::volpart {

/// Halve the vertices by weight recursively until there is a set for each part. A half grows from a
/// random vertex by the neighbour with the largest share of its connections inside. Vertices
/// without nets and weight are distributed round-robin.
std::vector<Part> recursive_bisection(const Hypergraph& graph, int num_parts, Random random);

}  // namespace hpcgnn::volpart
