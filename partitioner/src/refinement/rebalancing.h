/// Repair of partitions that break the weight limits.
#pragma once

#include <vector>

#include "random.h"
#include "state/hypergraph.h"
#include "task.h"

namespace hpcgnn::volpart {

/// `start` itself if it keeps the weight limits; else `start` after the cheapest moves that do.
Candidate balanced(const Hypergraph& graph, std::vector<Part> start, const Task& task,
                   Random random);

}  // namespace hpcgnn::volpart
