/// Partitions that break the weight limits, mended.
#pragma once

#include <vector>

#include "random.h"
#include "state/hypergraph.h"
#include "task.h"

namespace hpcgnn::volpart {

/// `start` itself where it keeps the weight limits; else what the cheapest moves make of it.
Candidate balanced(const Hypergraph& graph, std::vector<Part> start, const Task& task,
                   Random random);

}  // namespace hpcgnn::volpart
