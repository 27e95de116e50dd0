#include "refinement/receive_bound.h"

#include <algorithm>
#include <vector>

namespace hpcgnn::volpart {

Rows receive_bound(const Hypergraph& graph, int num_parts, double imbalance) {
  const double average = static_cast<double>(graph.total_weight()) / num_parts;
  Rows bound = 0;
  std::vector<Weight> beside;
  for (Vertex v = 0; v < graph.num_vertices(); ++v) {
    beside.clear();
    for (const Net net : graph.nets_of(v))
      if (graph.net_push[net] == 0) beside.push_back(graph.vertex_weight[graph.net_owner[net]]);
    const auto weight = static_cast<double>(graph.vertex_weight[v]);
    double room = (1 + imbalance) * std::max(average, weight) - weight;
    // The lightest first: no other choice of neighbours fits more of them beside v.
    std::ranges::sort(beside);
    auto left = static_cast<Rows>(beside.size());
    for (const Weight neighbour : beside) {
      room -= static_cast<double>(neighbour);
      if (room < 0) break;
      --left;
    }
    bound = std::max(bound, left);
  }
  return bound;
}

}  // namespace hpcgnn::volpart
