/// A partition with its loads, kept exact under moves.
#pragma once

#include <span>
#include <vector>

#include "state/connectivity.h"
#include "state/hypergraph.h"
#include "state/surroundings.h"

namespace hpcgnn::volpart {

/// The changes of loads caused by a move, at the affected parts.
class MoveEffect {
 public:
  explicit MoveEffect(int num_parts) : _change(static_cast<std::size_t>(num_parts)) {}

  void clear() {
    for (const Part part : _touched) _change[part] = Change{};
    _touched.clear();
  }
  void add(Part part, Weight send, Weight recv) {
    Change& change = _change[part];
    if (!change.touched) {
      change.touched = true;
      _touched.push_back(part);
    }
    change.load.send += send;
    change.load.recv += recv;
  }
  std::span<const Part> touched() const { return _touched; }
  const Load& at(Part part) const { return _change[part].load; }

 private:
  struct Change {
    Load load;
    bool touched = false;
  };
  std::vector<Change> _change;
  std::vector<Part> _touched;
};

/// The part of each vertex, the weight and load of each part, the connectivity of each net.
class State {
 public:
  /// @param[in] around The surroundings of `graph` if it is a share; outlives this object.
  State(const Hypergraph& graph, int num_parts, std::vector<Part> part,
        Surroundings* around = nullptr);

  const Hypergraph& graph() const { return *_graph; }
  const Connectivity& connectivity() const { return _connectivity; }
  int num_parts() const { return static_cast<int>(_load.size()); }
  /// Vertices may move to parts [0, num_own); the others are outside the share.
  int num_own() const { return _around ? _around->num_own : num_parts(); }
  Weight total_weight() const { return _around ? _around->total_weight : _graph->total_weight(); }
  Part part(Vertex v) const { return _part[v]; }
  std::span<const Part> parts() const { return _part; }
  Weight weight(Part p) const { return _weight[p]; }
  const Load& load(Part p) const { return _load[p]; }
  /// Total rows sent.
  Weight total() const { return _total; }

  /// Whether a net of v (as owner or pin) crosses parts.
  bool on_boundary(Vertex v) const;
  /// Set `effect` to the exact change of all loads if v moved to part q. O(nets of v).
  void evaluate(Vertex v, Part q, MoveEffect& effect) const;
  /// Move v to q, given the result of evaluate().
  void apply(Vertex v, Part q, const MoveEffect& effect);
  /// The share's own load of each part: loads less those of the surroundings.
  std::vector<Load> own_load() const;
  /// Set the loads of the surroundings.
  void surround(std::vector<Load> load);
  /// Apply the changes of the other shares; return whether there are other shares.
  bool exchange_loads();

 private:
  bool is_cut(Net net) const;
  void evaluate_pin(Net net, Part p, Part q, MoveEffect& effect) const;
  void evaluate_owned(Net net, Part p, Part q, MoveEffect& effect) const;

  const Hypergraph* _graph;
  Surroundings* _around;
  std::vector<Part> _part;
  Connectivity _connectivity;
  std::vector<Weight> _weight;
  std::vector<Load> _load;
  Weight _total = 0;
};

}  // namespace hpcgnn::volpart
