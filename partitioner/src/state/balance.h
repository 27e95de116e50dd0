/// The bound on part weights.
#pragma once

#include <span>
#include <vector>

#include "state/state.h"

namespace hpcgnn::volpart {

/// Allowed weight of each part: (1 + imbalance) times the larger of the average part weight and the
/// part's heaviest vertex. Vertices heavier than the average are fixed where they are, so that the
/// limits stay valid under moves.
class Balance {
 public:
  Balance(const State& state, double imbalance);

  /// Whether v may move to q: q stays within its limit, or exceeds it by less than v's part does.
  bool allows(const State& state, Vertex v, Part q) const {
    const Weight over = excess(state, q) + state.graph().vertex_weight[v];
    return is_free(state, v) && (over <= 0 || over < excess(state, state.part(v)));
  }
  /// Whether v may leave its part at all.
  bool is_free(const State& state, Vertex v) const {
    return state.graph().vertex_weight[v] <= _average;
  }
  /// Whether all parts keep their limits if v moves to q while u moves from q to r.
  bool allows_exchange(const State& state, Vertex v, Part q, Vertex u, Part r) const {
    const Weight arrives = state.graph().vertex_weight[v], leaves = state.graph().vertex_weight[u];
    const Weight makes_room = r == state.part(v) ? arrives : 0;
    return excess(state, q) + arrives <= leaves && excess(state, r) + leaves <= makes_room;
  }
  /// Loosen all limits by a share of the average part, until the next call.
  void loosen(double share) { _slack = static_cast<Weight>(share * static_cast<double>(_average)); }
  /// Weight of p above its current limit; negative if there is room.
  Weight excess(const State& state, Part p) const { return state.weight(p) - _limit[p] - _slack; }
  /// Sum of the positive excesses.
  Weight total_excess(const State& state) const;

 private:
  Weight _average;
  Weight _slack = 0;
  std::vector<Weight> _limit;
};

/// Give each vertex heavier than the average part a part of its own, as long as there are parts:
/// all but the heaviest of a part move to the lightest parts without such a vertex.
void separate_heavy(std::span<const Weight> weights, int num_parts, std::span<Part> part);

}  // namespace hpcgnn::volpart
