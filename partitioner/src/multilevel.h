/// The V-cycle: coarsen, partition the coarsest hypergraph, refine from there to the input.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "deadline.h"
#include "hypergraph.h"
#include "random.h"
#include "score.h"
#include "volpart/options.h"

namespace hpcgnn::volpart {

/// What every phase of one run shares.
struct Task {
  Options options;
  int num_parts = 1;
  const Deadline* deadline = nullptr;
  std::function<void(const std::string&)> report;
};

struct Candidate {
  std::vector<Part> part;
  Score score;
};

/// Coarsen inside the parts of `start` and refine it at every level. The result is `start` itself
/// where nothing was found that keeps its objective and its weights.
Candidate refine(const Hypergraph& graph, const std::vector<Part>& start, const Task& task,
                 Random random);

/// Coarsen freely, bisect the coarsest level recursively, and refine at every level.
Candidate create(const Hypergraph& graph, const Task& task, Random random);

}  // namespace hpcgnn::volpart
