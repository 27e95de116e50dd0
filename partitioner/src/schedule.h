/// How much refinement each preset does.
#pragma once

#include "volpart/options.h"

namespace hpcgnn::volpart {

struct Schedule {
  int max_levels;     ///< Coarse hypergraphs of a V-cycle.
  int coarse_sweeps;  ///< Sweeps at each of them.
  int fine_sweeps;    ///< Sweeps at the input itself.
  double proposals;   ///< Moves proposed in a sweep for each boundary vertex.
  double hot;         ///< Temperature of the first sweep of a level, in rows.
  double cold;        ///< Temperature of the last.
};

constexpr Schedule schedule_of(Preset preset) {
  return preset == Preset::kFast ? Schedule{1, 2, 3, 4, 0.5, 0.1} : Schedule{4, 5, 8, 8, 1, 0.1};
}

}  // namespace hpcgnn::volpart
