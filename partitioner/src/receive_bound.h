/// What no partition can avoid receiving.
#pragma once

#include <vector>

#include "hypergraph.h"

namespace hpcgnn::volpart {

/// For each vertex, a number of rows that the part which holds it receives in every partition: the
/// owners of the fetch nets that it is a pin of, less as many of the lightest as fit beside it.
std::vector<Rows> receive_bounds(const Hypergraph& graph, int num_parts, double imbalance);

}  // namespace hpcgnn::volpart
