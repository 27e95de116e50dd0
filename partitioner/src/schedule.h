/// How much refinement each preset does.
#pragma once

#include "volpart/options.h"

namespace hpcgnn::volpart {

struct Schedule {
  int max_levels;     ///< Coarse hypergraphs of a V-cycle.
  int coarse_sweeps;  ///< Sweeps at each of them.
  int fine_sweeps;    ///< Sweeps at the input itself.
  double proposals;   ///< Moves proposed in a sweep for each boundary vertex.
  /// Temperature of the first and the last sweep at the input, in rows. At coarse levels both are
  /// multiplied by the root of the vertices a cluster, as the borders of clusters are longer.
  double hot;
  double cold;
};

constexpr Schedule schedule_of(Preset preset) {
  return preset == Preset::kFast ? Schedule{0, 0, 3, 4, 0.5, 0.1} : Schedule{9, 5, 8, 8, 1, 0.1};
}

}  // namespace hpcgnn::volpart
