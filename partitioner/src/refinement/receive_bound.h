/// Lower bounds of received rows that hold for every partition.
#pragma once

#include <vector>

#include "state/hypergraph.h"

namespace hpcgnn::volpart {

/// Lower bound of the busiest receiver's rows in any partition: the part of a vertex receives the
/// fetch nets of which the vertex is a pin, except those of the lightest owners that fit into the
/// part. The bound is the maximum over vertices.
Rows receive_bound(const Hypergraph& graph, int num_parts, double imbalance);

/// The number of neighbours, of weights `beside`, that do not fit into one part with a vertex of
/// weight `weight`. Sorts `beside`.
Rows left_outside(std::vector<Weight>& beside, Weight weight, double average, double imbalance);

}  // namespace hpcgnn::volpart
