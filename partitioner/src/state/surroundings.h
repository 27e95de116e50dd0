/// What a share of a hypergraph knows of the rest.
#pragma once

#include <functional>
#include <vector>

#include "state/hypergraph.h"

namespace hpcgnn::volpart {

/// The parts [0, num_own) lie in the share with all their vertices; all others are outside.
struct Surroundings {
  int num_own = 0;
  /// Of all vertices of the whole.
  Weight total_weight = 0;
  /// Of each part: its load less what the share accounts for.
  std::vector<Load> load;
  /// Tell the other shares what this one accounts for at each part, and return their present
  /// `load`. All shares call it in turn.
  std::function<std::vector<Load>(const std::vector<Load>&)> exchange;
};

}  // namespace hpcgnn::volpart
