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
  /// Rows that the busiest receiver gets in every partition; 0 where receiving is not priced.
  Rows receive_bound = 0;
  const Deadline* deadline = nullptr;
  std::function<void(const std::string&)> report;
};

struct Candidate {
  std::vector<Part> part;
  Score score;
};

/// Balance `start` where it breaks the weight limits; coarsen inside its parts and refine it at
/// every level. The result is the balanced start where nothing was found that keeps its objective.
Candidate refine(const Hypergraph& graph, std::vector<Part> start, const Task& task, Random random);

/// Coarsen freely, bisect the coarsest level recursively, and refine at every level.
Candidate create(const Hypergraph& graph, const Task& task, Random random);

}  // namespace hpcgnn::volpart
