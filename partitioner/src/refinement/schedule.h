/// The amount of refinement of each preset.
#pragma once

#include "volpart/options.h"

namespace hpcgnn::volpart {

struct Schedule {
  int cycles;         ///< V-cycles, each inside the parts of the one before.
  int max_levels;     ///< Coarse hypergraphs of a V-cycle.
  int coarse_sweeps;  ///< Sweeps at each of them.
  int fine_sweeps;    ///< Sweeps at the input itself.
  int passes;         ///< Visits of each boundary vertex in a sweep.
  int proposals;      ///< Moves proposed in a visit.
  /// Temperature of the first and the last sweep at the input, in rows. At coarse levels both are
  /// multiplied by the root of the vertices per cluster, since borders of clusters are longer.
  double hot;
  double cold;
  /// Temporary excess weight of a part, as a share of the average part: at coarse levels, and in
  /// the first sweep at the input, from where it falls to 0 halfway through the sweeps.
  double coarse_slack;
  double fine_slack;
  double most_pins;  ///< Largest share of the finer level's pins that a coarse level may keep.
};

constexpr Schedule schedule_of(Preset preset) {
  return preset == Preset::kFast ? Schedule{1, 9, 1, 3, 1, 4, 0.5, 0.1, 0, 0, 0.93}
                                 : Schedule{2, 9, 3, 5, 4, 2, 2, 0.1, 0.05, 0.03, 0.93};
}

/// Steepness of the potential at the busiest parts, as doublings of its exponent. If several cycles
/// follow, the first one is less steep: on clusters, a steep potential buys balance with rows that
/// finer levels cannot win back.
struct Doublings {
  int coarse, finest;
};
constexpr Doublings kOnlyCycle{5, 5}, kFirstCycle{4, 4}, kLaterCycle{6, 7};

constexpr Doublings doublings_of(int cycle, int cycles) {
  if (cycles == 1) return kOnlyCycle;
  return cycle == 0 ? kFirstCycle : kLaterCycle;
}

}  // namespace hpcgnn::volpart
