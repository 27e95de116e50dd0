/// The hypergraphs of a V-cycle, from the input to the coarsest.
#pragma once

#include <span>
#include <vector>

#include "coarsening/coarsening.h"
#include "random.h"
#include "state/hypergraph.h"
#include "state/state.h"

namespace hpcgnn::volpart {

class Deadline;

struct Level {
  /// Empty where it takes more than half of the memory of the last finer one that is there.
  Hypergraph graph;
  Clustering from_finer;
};

/// How far to coarsen.
struct CoarseningLimits {
  int max_levels;
  int num_parts;
  /// Coarsening ends before a level that keeps a larger share of the finer one's pins: sweeps over
  /// it take as long as over that, and achieve less.
  double most_pins = 1;
};

/// Coarsen inside the parts of `part`, which ends as the same partition of the coarsest level.
/// Returns the coarse levels, coarsest last; none where `graph` is small enough. All but the
/// coarsest come without the index of their nets, and some without their graphs; `graph`, if its
/// nets are lent, without its pins.
std::vector<Level> coarsen(Hypergraph& graph, std::vector<Part>& part,
                           const CoarseningLimits& limits, const Deadline& deadline, Random random);

/// Give the last of the levels above `graph`, if any is left, its graph and the index of its nets.
/// Only the level at work has these: all graphs together take several times the memory of the input
/// where contraction leaves most pins apart, and the time to make one again is little.
void restore_last(Hypergraph& graph, std::vector<Level>& levels);

/// The part of each fine vertex, given that of its cluster.
std::vector<Part> to_fine(const Clustering& clustering, std::span<const Part> part);

}  // namespace hpcgnn::volpart
