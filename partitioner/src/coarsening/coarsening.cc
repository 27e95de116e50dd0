#include "coarsening/coarsening.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace hpcgnn::volpart {
namespace {

constexpr double kMostShrink = 2.5;
constexpr std::size_t kSiblingPins = 12;
constexpr Net kNetsPerSample = 8;
constexpr std::size_t kSmallTable = 64;
constexpr Vertex kNone = std::numeric_limits<Vertex>::max();

/// Ratings of the clusters around one vertex.
class Ratings {
 public:
  explicit Ratings(Vertex num_vertices) : _value(num_vertices) {}

  void add(Vertex cluster, double value) {
    if (_value[cluster] == 0) _touched.push_back(cluster);
    _value[cluster] += value;
  }
  /// The cluster rated highest among those that `allowed` accepts, or kNone; forget all ratings.
  template <class Allowed>
  Vertex take_best(Allowed&& allowed) {
    Vertex best = kNone;
    double most = 0;
    for (const Vertex cluster : _touched) {
      const double value = std::exchange(_value[cluster], 0.0);
      if (value > most && allowed(cluster)) {
        best = cluster;
        most = value;
      }
    }
    _touched.clear();
    return best;
  }

 private:
  std::vector<double> _value;
  std::vector<Vertex> _touched;
};

void rate(const Hypergraph& graph, Vertex v, const std::vector<Vertex>& leader, Ratings& ratings) {
  const auto share = [&](Net net) {
    return static_cast<double>(graph.weight_of(net)) /
           static_cast<double>(graph.pins_of(net).size());
  };
  for (const Net net : graph.nets_of(v)) {
    const double value = share(net);
    ratings.add(leader[graph.net_owner[net]], value);
    if (graph.pins_of(net).size() > kSiblingPins) continue;
    for (const Vertex pin : graph.pins_of(net))
      if (pin != v) ratings.add(leader[pin], value);
  }
  for (Net net = graph.owned_begin[v]; net < graph.owned_begin[v + 1]; ++net)
    for (const Vertex pin : graph.pins_of(net)) ratings.add(leader[pin], share(net));
}

/// Number clusters by their first vertex; `leader` names a member of each.
Clustering number_clusters(const std::vector<Vertex>& leader) {
  Clustering clustering{std::vector<Vertex>(leader.size()), 0};
  std::vector<Vertex> number(leader.size(), kNone);
  for (std::size_t v = 0; v < leader.size(); ++v) {
    if (number[leader[v]] == kNone) number[leader[v]] = clustering.num_clusters++;
    clustering.cluster[v] = number[leader[v]];
  }
  return clustering;
}

/// Appends coarse nets, merging identical nets of the current owner.
class NetBuilder {
 public:
  explicit NetBuilder(Hypergraph& graph) : _graph(graph) { _graph.pins_begin.push_back(0); }

  void start_owner(Vertex owner) {
    _owner = owner;
    // The cost of clearing a table depends on its largest size so far.
    if (_known.bucket_count() > kSmallTable) _known = {};
    _known.clear();
  }
  /// @param[in] pins Sorted, without the owner, not empty.
  void add(const std::vector<Vertex>& pins, std::uint32_t weight, std::uint8_t push) {
    std::uint64_t hash = push;
    for (const Vertex pin : pins) hash = (hash ^ pin) * 0x9E3779B97F4A7C15u;
    const auto [first, last] = _known.equal_range(hash);
    for (auto known = first; known != last; ++known) {
      const Net net = known->second;
      if (_graph.net_push[net] == push && std::ranges::equal(_graph.pins_of(net), pins)) {
        _graph.net_weight[net] += weight;
        return;
      }
    }
    _known.emplace(hash, _graph.num_nets());
    _graph.net_owner.push_back(_owner);
    _graph.net_weight.push_back(weight);
    _graph.net_push.push_back(push);
    for (const Vertex pin : pins) _graph.pins.push_back(pin);
    _graph.pins_begin.push_back(static_cast<Offset>(_graph.pins.size()));
  }

 private:
  Hypergraph& _graph;
  Vertex _owner = 0;
  std::unordered_multimap<std::uint64_t, Net> _known;
};

/// Members of each cluster, one cluster after the other.
std::vector<Vertex> group_members(const Clustering& clustering) {
  std::vector<Vertex> members(clustering.cluster.size());
  std::iota(members.begin(), members.end(), Vertex{0});
  std::ranges::stable_sort(members, {}, [&](Vertex v) { return clustering.cluster[v]; });
  return members;
}

}  // namespace

Clustering cluster_vertices(const Hypergraph& graph, std::span<const Part> part, Weight max_weight,
                            Random random) {
  const Vertex num_vertices = graph.num_vertices();
  std::vector<Vertex> leader(num_vertices), order(graph.num_inside());
  std::iota(leader.begin(), leader.end(), Vertex{0});
  std::iota(order.begin(), order.end(), Vertex{0});
  random.shuffle(order);
  std::vector<Weight> weight = graph.vertex_weight;
  std::vector<bool> joined(num_vertices);
  Ratings ratings(num_vertices);
  auto left = static_cast<double>(graph.num_inside());
  for (const Vertex v : order) {
    if (left * kMostShrink <= graph.num_inside()) break;
    if (joined[v] || weight[v] > max_weight) continue;
    rate(graph, v, leader, ratings);
    const Vertex best = ratings.take_best([&](Vertex cluster) {
      return cluster != v && part[cluster] == part[v] && weight[cluster] + weight[v] <= max_weight;
    });
    if (best == kNone) continue;
    // Neither joins again, so a leader always leads itself and there are no chains to follow.
    leader[v] = best;
    weight[best] += weight[v];
    joined[v] = joined[best] = true;
    --left;
  }
  return number_clusters(leader);
}

double kept_pins(const Hypergraph& graph, const Clustering& clustering) {
  std::vector<Net> last_net(clustering.num_clusters, std::numeric_limits<Net>::max());
  std::size_t kept = 0, pins = 0;
  for (Net net = 0; net < graph.num_nets(); net += kNetsPerSample) {
    last_net[clustering.cluster[graph.net_owner[net]]] = net;
    for (const Vertex pin : graph.pins_of(net))
      kept += std::exchange(last_net[clustering.cluster[pin]], net) != net ? 1 : 0;
    pins += graph.pins_of(net).size();
  }
  return pins == 0 ? 0 : static_cast<double>(kept) / static_cast<double>(pins);
}

Hypergraph contract(const Hypergraph& graph, const Clustering& clustering) {
  Hypergraph coarse;
  coarse.vertex_weight.assign(clustering.num_clusters, 0);
  for (Vertex v = 0; v < graph.num_vertices(); ++v)
    coarse.vertex_weight[clustering.cluster[v]] += graph.vertex_weight[v];
  coarse.num_outside = graph.num_outside;
  if (!graph.outside_load.empty()) {
    coarse.outside_load.resize(clustering.num_clusters);
    for (Vertex v = 0; v < graph.num_vertices(); ++v) {
      Load& sum = coarse.outside_load[clustering.cluster[v]];
      sum.send += graph.outside_load[v].send;
      sum.recv += graph.outside_load[v].recv;
    }
  }
  NetBuilder builder(coarse);
  std::vector<Net> last_net(clustering.num_clusters, std::numeric_limits<Net>::max());
  std::vector<Vertex> pins;
  coarse.owned_begin.reserve(clustering.num_clusters + 1);
  // Growing by copies would hold the pins twice; unused space takes no physical memory.
  coarse.pins = Packed(clustering.num_clusters);
  coarse.pins.reserve(graph.pins.size());
  Vertex previous = kNone;
  for (const Vertex v : group_members(clustering)) {
    const Vertex owner = clustering.cluster[v];
    if (owner != previous) {
      coarse.owned_begin.push_back(coarse.num_nets());
      builder.start_owner(owner);
      previous = owner;
    }
    for (Net net = graph.owned_begin[v]; net < graph.owned_begin[v + 1]; ++net) {
      pins.clear();
      for (const Vertex pin : graph.pins_of(net)) {
        const Vertex cluster = clustering.cluster[pin];
        if (cluster == owner || last_net[cluster] == net) continue;
        last_net[cluster] = net;
        pins.push_back(cluster);
      }
      // A net inside one cluster cannot be cut any more: coarse levels drop it.
      if (pins.empty()) continue;
      if (coarse.is_outside(owner) && pins.size() == 1) {
        coarse.settle_outside(owner, pins.front(), graph.weight_of(net), graph.net_push[net]);
        continue;
      }
      std::ranges::sort(pins);
      builder.add(pins, graph.weight_of(net), graph.net_push[net]);
    }
  }
  coarse.owned_begin.push_back(coarse.num_nets());
  return coarse;
}

}  // namespace hpcgnn::volpart
