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
  /// Empty if it takes more than half of the memory of the last finer graph that is stored.
  Hypergraph graph;
  Clustering from_finer;
};

/// How far to coarsen.
struct CoarseningLimits {
  int max_levels;
  int num_parts;
  /// Coarsening ends before a level that keeps a larger share of the finer level's pins: sweeps
  /// over it would take as long as over the finer level, and achieve less.
  double most_pins = 1;
};

/// Coarsen inside the parts of `part`, which becomes the same partition of the coarsest level.
/// Returns the coarse levels, coarsest last; none if `graph` is small enough. All but the coarsest
/// come without the index of their nets, and some without their graphs; `graph` loses its pins if
/// its nets are borrowed.
std::vector<Level> coarsen(Hypergraph& graph, std::vector<Part>& part,
                           const CoarseningLimits& limits, const Deadline& deadline, Random random);

/// Rebuild the graph and the index of nets of the last level above `graph`, if any is left. Only
/// the current level has them: all graphs together would take several times the memory of the input
/// if contraction merges few pins, and rebuilding one takes little time.
void restore_last(Hypergraph& graph, std::vector<Level>& levels);

/// The part of each fine vertex, given that of its cluster.
std::vector<Part> to_fine(const Clustering& clustering, std::span<const Part> part);

}  // namespace hpcgnn::volpart
