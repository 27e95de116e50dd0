#include "volpart/sketch.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "coarsening/coarsening.h"
#include "random.h"
#include "state/hypergraph.h"

namespace hpcgnn::volpart {
namespace {

constexpr int kLevels = 3;
constexpr Weight kSketchedPerPart = 50;

/// The neighbours of a vertex, and the weight of the nets between them.
class Neighbours {
 public:
  explicit Neighbours(const Hypergraph& graph) : _graph(graph), _weight(graph.num_vertices()) {}

  void gather(Vertex v) {
    for (const Vertex u : _found) _weight[u] = 0;
    _found.clear();
    for (const Net net : _graph.nets_of(v)) add(_graph.net_owner[net], net);
    for (Net net = _graph.owned_begin[v]; net < _graph.owned_begin[v + 1]; ++net)
      for (const Vertex pin : _graph.pins_of(net)) add(pin, net);
  }
  std::span<const Vertex> found() const { return _found; }
  double weight(Vertex u) const { return static_cast<double>(_weight[u]); }

 private:
  void add(Vertex u, Net net) {
    if (_weight[u] == 0) _found.push_back(u);
    _weight[u] += _graph.weight_of(net);
  }

  const Hypergraph& _graph;
  std::vector<std::uint64_t> _weight;
  std::vector<Vertex> _found;
};

/// A number in [0, 1) that is the same for (u, v) and (v, u).
double draw(Vertex u, Vertex v, std::uint64_t seed) {
  const auto [low, high] = std::minmax(u, v);
  return Random(seed ^ (std::uint64_t{high} << 32 | low)).unit();
}

/// Contract `graph`, and update the cluster of each row.
void coarsen(Hypergraph& graph, std::vector<std::int32_t>& cluster, int num_parts,
             std::int64_t max_edges, Random& random) {
  const Weight max_weight = graph.total_weight() / (kSketchedPerPart * num_parts) + 1;
  for (int level = 0; level < kLevels; ++level) {
    if (static_cast<std::int64_t>(graph.pins.size()) <= max_edges) return;
    const std::vector<Part> whole(graph.num_vertices());
    const Clustering found = cluster_vertices(graph, whole, max_weight, random.fork());
    if (found.num_clusters * kLeastShrink > graph.num_vertices()) return;
    graph = contract(graph, found);
    graph.index_nets();
    for (std::int32_t& at : cluster)
      at = static_cast<std::int32_t>(found.cluster[static_cast<std::size_t>(at)]);
  }
}

/// Twice the number of edges, and the sum of the weights at each vertex.
std::pair<std::int64_t, std::vector<double>> degrees(const Hypergraph& graph, Neighbours& near) {
  std::pair<std::int64_t, std::vector<double>> found{0, graph.num_vertices()};
  for (Vertex v = 0; v < graph.num_vertices(); ++v) {
    near.gather(v);
    found.first += static_cast<std::int64_t>(near.found().size());
    for (const Vertex u : near.found()) found.second[v] += near.weight(u);
  }
  return found;
}

}  // namespace

Sketch sketch(const CsrView& csr, int num_parts, std::span<const std::int64_t> weights,
              std::int64_t max_edges, std::uint64_t seed) {
  csr.check();
  check_weights(csr, weights);
  check_parts(num_parts);
  Hypergraph graph = fetch_hypergraph(csr, weights);
  Random random(seed);
  Sketch found;
  found.cluster.resize(graph.num_vertices());
  std::iota(found.cluster.begin(), found.cluster.end(), 0);
  coarsen(graph, found.cluster, num_parts, max_edges, random);
  Neighbours near(graph);
  const auto [edges, degree] = degrees(graph, near);
  // The sum over stored edges of weight / degree, for both ends, is twice the number of vertices.
  const double share = static_cast<double>(max_edges) / (2.0 * graph.num_vertices());
  found.indptr.push_back(0);
  for (Vertex v = 0; v < graph.num_vertices(); ++v) {
    near.gather(v);
    for (const Vertex u : near.found()) {
      const double weight = near.weight(u);
      const double sampled = share * weight * (1 / degree[u] + 1 / degree[v]);
      const double chance = edges <= max_edges ? 1 : std::min(1.0, sampled);
      if (draw(u, v, seed) >= chance) continue;
      found.indices.push_back(static_cast<std::int32_t>(u));
      found.edge_weight.push_back(static_cast<std::int32_t>(
          std::min(std::round(weight / chance), static_cast<double>(kMaxEdgeWeight))));
    }
    found.indptr.push_back(static_cast<std::int64_t>(found.indices.size()));
  }
  found.vertex_weight = std::move(graph.vertex_weight);
  return found;
}

}  // namespace hpcgnn::volpart
