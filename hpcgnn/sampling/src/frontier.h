/// Frontier sampling: one of several walkers moves at a time, more often one on a large node.
#pragma once

#include <cstdint>
#include <vector>

#include "draws.h"
#include "graph.h"

namespace hpcgnn::sampling {

struct Frontier {
  std::int64_t num_walkers;
  std::int64_t num_pops;
  double enlargement;  ///< the paper's eta
  bool entered;        ///< record the node that a walker moves to, not the one it leaves
};

/// Counts of events in the Dashboards.
struct FrontierCounts {
  std::int64_t cleanups;
  std::int64_t truncated;  ///< nodes that counted for less than their degree
  std::int64_t probes;     ///< rounds of kProbes probes; a pop needs one or more
};

/// Write the nodes of several subgraphs of a seed to `visits`: the starting nodes, drawn uniformly
/// with repeats from the roots, then a node for each pop (Algorithm 2 of the graph-sampling paper).
/// A walker on a node without neighbours stays there; if all do, the pops end. The subgraphs take
/// turns, so that one moves while the others wait for memory; each is independent of the others.
/// @throws std::invalid_argument as the Dashboard does.
FrontierCounts sample_frontiers(const Graph& graph, const Frontier& frontier, std::uint64_t seed,
                                const std::vector<std::int64_t>& numbers,
                                std::vector<std::vector<std::int32_t>>& visits);

}  // namespace hpcgnn::sampling
