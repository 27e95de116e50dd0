#include "refinement/receive_bound.h"

#include <algorithm>
#include <vector>

namespace hpcgnn::volpart {

Rows left_outside(std::vector<Weight>& beside, Weight weight, double average, double imbalance) {
  const auto own = static_cast<double>(weight);
  double room = (1 + imbalance) * std::max(average, own) - own;
  // Lightest first: no other choice of neighbours fits more of them into the vertex's part.
  std::ranges::sort(beside);
  auto left = static_cast<Rows>(beside.size());
  for (const Weight neighbour : beside) {
    room -= static_cast<double>(neighbour);
    if (room < 0) break;
    --left;
  }
  return left;
}

Rows receive_bound(const Hypergraph& graph, int num_parts, double imbalance) {
  const double average = static_cast<double>(graph.total_weight()) / num_parts;
  Rows bound = 0;
  std::vector<Weight> beside;
  for (Vertex v = 0; v < graph.num_vertices(); ++v) {
    beside.clear();
    for (const Net net : graph.nets_of(v))
      if (graph.net_push[net] == 0) beside.push_back(graph.vertex_weight[graph.net_owner[net]]);
    bound = std::max(bound, left_outside(beside, graph.vertex_weight[v], average, imbalance));
  }
  return bound;
}

}  // namespace hpcgnn::volpart
