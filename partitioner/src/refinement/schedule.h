/// How much refinement each preset does.
#pragma once

#include "volpart/options.h"

namespace hpcgnn::volpart {

struct Schedule {
  int cycles;         ///< V-cycles, each inside the parts that the last one left.
  int max_levels;     ///< Coarse hypergraphs of a V-cycle.
  int coarse_sweeps;  ///< Sweeps at each of them.
  int fine_sweeps;    ///< Sweeps at the input itself.
  int passes;         ///< Visits of each boundary vertex in a sweep.
  int proposals;      ///< Moves proposed in a visit.
  /// Temperature of the first and the last sweep at the input, in rows. At coarse levels both are
  /// multiplied by the root of the vertices a cluster, as the borders of clusters are longer.
  double hot;
  double cold;
  /// Weight above its limit that a part may have for a while, as a share of the average part: at
  /// coarse levels, and in the first sweep at the input, falling to none in the middle of them.
  double coarse_slack;
  double fine_slack;
  double most_pins;  ///< Of those of the finer hypergraph, that a coarse one may keep.
};

constexpr Schedule schedule_of(Preset preset) {
  return preset == Preset::kFast ? Schedule{1, 9, 1, 3, 1, 4, 0.5, 0.1, 0, 0, 0.93}
                                 : Schedule{2, 9, 3, 5, 4, 2, 2, 0.1, 0.05, 0.03, 0.93};
}

/// How steeply the busiest parts are priced, as doublings of the potential's exponent. Where
/// several cycles follow, the first one leaves them time: a steep price on clusters buys balance
/// with rows that finer levels cannot win back.
struct Doublings {
  int coarse, finest;
};
constexpr Doublings kOnlyCycle{5, 5}, kFirstCycle{4, 4}, kLaterCycle{6, 7};

constexpr Doublings doublings_of(int cycle, int cycles) {
  if (cycles == 1) return kOnlyCycle;
  return cycle == 0 ? kFirstCycle : kLaterCycle;
}

}  // namespace hpcgnn::volpart
