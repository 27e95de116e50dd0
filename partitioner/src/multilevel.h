/// The V-cycle: coarsen inside the parts, refine from the coarsest hypergraph to the finest.
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

/// Refine `start`; the result is `start` itself where nothing was found that keeps its objective
/// and its weights.
Candidate refine(const Hypergraph& graph, const std::vector<Part>& start, const Task& task,
                 Random random);

}  // namespace hpcgnn::volpart
