/// What no partition can avoid receiving.
#pragma once

#include "state/hypergraph.h"

namespace hpcgnn::volpart {

/// Rows that the busiest receiver gets in every partition: for each vertex, the part which holds it
/// receives the owners of the fetch nets that it is a pin of, less as many of the lightest as fit
/// beside it; the largest of these numbers.
Rows receive_bound(const Hypergraph& graph, int num_parts, double imbalance);

}  // namespace hpcgnn::volpart
