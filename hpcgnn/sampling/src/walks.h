/// Random walks from random nodes.
#pragma once

#include <cstdint>
#include <vector>

#include "draws.h"
#include "graph.h"

namespace hpcgnn::sampling {

/// Append to `visits` the nodes of `num_roots` walks of `length` steps (Algorithm 5 of the
/// graph-sampling paper): all roots, uniform with repeats, then all first steps, and so on. A walk
/// ends at a node without neighbours.
void sample_walks(const Graph& graph, std::int64_t num_roots, std::int64_t length, Draws draws,
                  std::vector<std::int32_t>& visits);

}  // namespace hpcgnn::sampling
