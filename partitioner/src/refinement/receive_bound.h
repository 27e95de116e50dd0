/// What no partition can avoid receiving.
#pragma once

#include <vector>

#include "state/hypergraph.h"

namespace hpcgnn::volpart {

/// Rows that the busiest receiver gets in every partition: for each vertex, the part which holds it
/// receives the owners of the fetch nets that it is a pin of, less as many of the lightest as fit
/// beside it; the largest of these numbers.
Rows receive_bound(const Hypergraph& graph, int num_parts, double imbalance);

/// Of the neighbours with weights `beside`, those that do not fit beside a vertex of `weight` into
/// one part. Sorts `beside`.
Rows left_outside(std::vector<Weight>& beside, Weight weight, double average, double imbalance);

}  // namespace hpcgnn::volpart
