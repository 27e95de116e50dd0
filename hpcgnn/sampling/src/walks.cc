#include "walks.h"

namespace hpcgnn::sampling {

void sample_walks(const Graph& graph, std::int64_t num_roots, std::int64_t length, Draws draws,
                  std::vector<std::int32_t>& visits) {
  if (graph.num_roots == 0) return;
  std::vector<std::int32_t> nodes;
  std::vector<std::int64_t> entries;
  visits.reserve(visits.size() + static_cast<std::size_t>(num_roots * (length + 1)));
  for (std::int64_t i = 0; i < num_roots; ++i) {
    nodes.push_back(static_cast<std::int32_t>(draws.below(graph.num_roots)));
    prefetch(graph.indptr + nodes.back());
  }
  visits.insert(visits.end(), nodes.begin(), nodes.end());
  // All walks take a step before any takes the next one, so that their reads from memory overlap.
  for (std::int64_t step = 0; step < length && !nodes.empty(); ++step) {
    entries.clear();
    for (const std::int32_t node : nodes) {
      const std::int64_t degree = graph.degree(node);
      if (degree == 0) continue;
      entries.push_back(graph.indptr[node] + draws.below(degree));
      prefetch(graph.indices + entries.back());
    }
    nodes.clear();
    for (const std::int64_t entry : entries) {
      nodes.push_back(graph.indices[entry]);
      prefetch(graph.indptr + nodes.back());
    }
    visits.insert(visits.end(), nodes.begin(), nodes.end());
  }
}

}  // namespace hpcgnn::sampling
