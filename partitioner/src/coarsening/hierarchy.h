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
  Hypergraph graph;
  Clustering from_finer;
};

/// How far to coarsen.
struct CoarseningLimits {
  int max_levels;
  int num_parts;
};

/// Coarsen inside the parts of `part`, which ends as the same partition of the coarsest level.
/// Returns the coarse levels, coarsest last; none where `graph` is small enough. All but the
/// coarsest come without the index of their nets.
std::vector<Level> coarsen(const Hypergraph& graph, std::vector<Part>& part,
                           const CoarseningLimits& limits, const Deadline& deadline, Random random);

/// The part of each fine vertex, given that of its cluster.
std::vector<Part> to_fine(const Clustering& clustering, std::span<const Part> part);

}  // namespace hpcgnn::volpart
