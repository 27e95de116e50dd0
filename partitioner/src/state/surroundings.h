/// The rest of the hypergraph, as seen from a share.
#pragma once

#include <functional>
#include <vector>

#include "state/hypergraph.h"

namespace hpcgnn::volpart {

/// The parts [0, num_own) lie in the share with all their vertices; all others are outside.
struct Surroundings {
  int num_own = 0;
  /// Total over all vertices of the whole graph.
  Weight total_weight = 0;
  /// For each part: its load without the share's own.
  std::vector<Load> load;
  /// Publish this share's own load of each part, and return the current `load`. All shares call it
  /// in turn.
  std::function<std::vector<Load>(const std::vector<Load>&)> exchange;
};

}  // namespace hpcgnn::volpart
