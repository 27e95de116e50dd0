/// The V-cycle: coarsen, partition the coarsest hypergraph, refine from there to the input.
#pragma once

#include <vector>

#include "random.h"
#include "state/hypergraph.h"
#include "task.h"

namespace hpcgnn::volpart {

/// Balance `start` if it breaks the weight limits; coarsen inside its parts and refine it at every
/// level. The result is the balanced start if no partition with at least its objective was found.
Candidate refine(Hypergraph& graph, std::vector<Part> start, const Task& task, Random random);

/// Coarsen freely, bisect the coarsest level recursively, and refine at every level.
Candidate create(Hypergraph& graph, const Task& task, Random random);

}  // namespace hpcgnn::volpart
