#include "initial/recursive_bisection.h"

#include <numeric>
#include <queue>
#include <utility>

namespace hpcgnn::volpart {
namespace {

/// The pairs of pins grow with the square of a net's size, and say little about each other in a
/// large net.
constexpr std::size_t kConnectedPins = 30;

/// Call visit(neighbour, value) for the connections of v; small nets connect siblings too.
template <class Visit>
void for_each_connection(const Hypergraph& graph, Vertex v, Visit&& visit) {
  const auto share = [&](Net net) {
    return static_cast<double>(graph.weight_of(net)) /
           static_cast<double>(graph.pins_of(net).size());
  };
  for (const Net net : graph.nets_of(v)) {
    visit(graph.net_owner[net], share(net));
    if (graph.pins_of(net).size() > kConnectedPins) continue;
    for (const Vertex pin : graph.pins_of(net))
      if (pin != v) visit(pin, share(net));
  }
  for (Net net = graph.owned_begin[v]; net < graph.owned_begin[v + 1]; ++net)
    for (const Vertex pin : graph.pins_of(net)) visit(pin, share(net));
}

class Bisection {
 public:
  Bisection(const Hypergraph& graph, int num_parts, Random random)
      : _graph(graph),
        _random(random),
        _part(graph.num_vertices()),
        _connections(graph.num_vertices()),
        _inside(graph.num_vertices()) {
    std::vector<Vertex> members;
    Vertex dealt = 0;
    for (Vertex v = 0; v < graph.num_vertices(); ++v) {
      for_each_connection(graph, v, [&](Vertex, double value) { _connections[v] += value; });
      if (_connections[v] > 0 || graph.vertex_weight[v] > 0)
        members.push_back(v);
      else
        // Vertices without nets and weight have no effect on the bisection.
        _part[v] = static_cast<Part>(dealt++ % static_cast<Vertex>(num_parts));
    }
    for (const Vertex v : members) _part[v] = 0;
    split(std::move(members), 0, num_parts);
  }

  std::vector<Part> take() { return std::move(_part); }

 private:
  /// `members` are exactly the vertices in part `first`, which is still to be split.
  void split(std::vector<Vertex> members, int first, int num_parts) {
    if (num_parts == 1) return;
    const int low = num_parts / 2;
    Weight total = 0;
    for (const Vertex v : members) total += _graph.vertex_weight[v];
    const auto second = static_cast<Part>(first + low);
    for (const Vertex v : members) _part[v] = second;
    grow(members, second, static_cast<Part>(first), total * low / num_parts);
    std::vector<Vertex> grown, left;
    for (const Vertex v : members) (_part[v] == second ? left : grown).push_back(v);
    members.clear();
    members.shrink_to_fit();
    split(std::move(grown), first, low);
    split(std::move(left), first + low, num_parts - low);
  }

  /// Move vertices from part `from` to part `to` until they weigh about `target`.
  void grow(std::vector<Vertex>& members, Part from, Part to, Weight target) {
    std::priority_queue<std::pair<double, Vertex>> next;
    _random.shuffle(members);
    for (const Vertex v : members) _inside[v] = 0;
    const auto add = [&](Vertex v) {
      // Skip a vertex that would overshoot the target by more than is missing.
      if (_part[v] != from || _graph.vertex_weight[v] / 2 > target) return;
      _part[v] = to;
      target -= _graph.vertex_weight[v];
      for_each_connection(_graph, v, [&](Vertex u, double value) {
        if (_part[u] != from) return;
        _inside[u] += value;
        // Pushed again instead of moved up: older entries of u come later and are skipped.
        next.emplace(_inside[u] / _connections[u], u);
      });
    };
    // Another seed: the component of the last one is used up.
    for (const Vertex seed : members) {
      if (target <= 0) return;
      add(seed);
      while (!next.empty() && target > 0) {
        const Vertex v = next.top().second;
        next.pop();
        add(v);
      }
    }
  }

  const Hypergraph& _graph;
  Random _random;
  std::vector<Part> _part;
  std::vector<double> _connections, _inside;
};

}  // namespace

std::vector<Part> recursive_bisection(const Hypergraph& graph, int num_parts, Random random) {
  return Bisection(graph, num_parts, random).take();
}

}  // namespace hpcgnn::volpart
