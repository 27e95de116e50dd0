/// The frontier sampler in its simplest form: sums of degrees, and a search for each pop.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "draws.h"
#include "graph.h"

namespace hpcgnn::sampling::testing {

/// Append nodes with the same distribution as those of `sample_frontiers` for a subgraph, in
/// O(walkers) for each pop.
inline void sample_frontier_by_sums(const Graph& graph, std::int64_t num_walkers,
                                    std::int64_t num_pops, Draws draws,
                                    std::vector<std::int32_t>& visits) {
  std::vector<std::int32_t> frontier;
  for (std::int64_t i = 0; i < num_walkers; ++i)
    frontier.push_back(static_cast<std::int32_t>(draws.below(graph.num_nodes)));
  visits.insert(visits.end(), frontier.begin(), frontier.end());
  // sums[i] counts the neighbours of the walkers before i.
  std::vector<std::int64_t> sums(frontier.size() + 1, 0);
  for (std::size_t i = 0; i < frontier.size(); ++i)
    sums[i + 1] = sums[i] + graph.degree(frontier[i]);
  for (std::int64_t pop = 0; pop < num_pops && sums.back() > 0; ++pop) {
    const std::int64_t drawn = draws.below(sums.back());
    const auto place = std::upper_bound(sums.begin(), sums.end(), drawn) - sums.begin() - 1;
    const auto walker = static_cast<std::size_t>(place);
    const std::int32_t left = frontier[walker];
    visits.push_back(left);
    const std::int32_t reached =
        graph.indices[graph.indptr[left] + draws.below(graph.degree(left))];
    frontier[walker] = reached;
    const std::int64_t change = graph.degree(reached) - graph.degree(left);
    for (std::size_t i = walker + 1; i < sums.size(); ++i) sums[i] += change;
  }
}

}  // namespace hpcgnn::sampling::testing
