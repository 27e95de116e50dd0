#include "refinement/rebalancing.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

#include "refinement/annealing.h"
#include "refinement/schedule.h"

namespace hpcgnn::volpart {
namespace {

constexpr int kPasses = 6;
/// Number of candidate parts for a vertex, of which the cheapest is used.
constexpr int kProposals = 8;
/// Weight of the examined vertices, relative to the weight that has to leave a part.
constexpr double kChoice = 8;

/// A move, and its cost per unit of weight.
struct Offer {
  double price;
  Vertex v;
  Part to;
  bool operator<(const Offer& other) const { return price > other.price; }
};

Score score_of(const Hypergraph& graph, const std::vector<Part>& part, const Task& task) {
  const State state(graph, task.num_parts, part);
  return score(state, Balance(state, task.options.imbalance), task.options.objective);
}

}  // namespace

Annealer::WayOut Annealer::best_way_out(Vertex v) {
  WayOut best{_state.part(v), 0};
  const auto consider = [&](Part q) {
    if (q == _state.part(v) || !_balance.allows(_state, v, q)) return;
    _state.evaluate(v, q, _effect);
    const double change = _potential.change(_state, _effect);
    if (best.to == _state.part(v) || change < best.change) best = {q, change};
  };
  for (int trial = 0; trial < kProposals; ++trial) consider(propose(v));
  if (best.to != _state.part(v)) return best;
  // Proposals follow nets, and may lead only to full parts.
  Part roomiest = 0;
  for (int p = 1; p < _state.num_own(); ++p)
    if (_balance.excess(_state, static_cast<Part>(p)) < _balance.excess(_state, roomiest))
      roomiest = static_cast<Part>(p);
  consider(roomiest);
  return best;
}

bool Annealer::relieve(Vertex v) {
  const Part to = best_way_out(v).to;
  if (to == _state.part(v)) return false;
  _state.evaluate(v, to, _effect);
  move(v, to);
  return true;
}

void Annealer::shed_cheapest() {
  const auto weight = [&](Vertex v) {
    return static_cast<double>(std::max<Weight>(_state.graph().vertex_weight[v], 1));
  };
  // Examine more weight than has to leave, to find the cheapest moves, not the first possible ones.
  std::vector<double> wanted;
  for (int p = 0; p < _state.num_own(); ++p)
    wanted.push_back(kChoice * static_cast<double>(_balance.excess(_state, static_cast<Part>(p))));
  list_boundary();
  _random.shuffle(_boundary);
  std::priority_queue<Offer> offers;
  for (const Vertex v : _boundary) {
    const Part from = _state.part(v);
    if (wanted[from] <= 0) continue;
    const WayOut out = best_way_out(v);
    if (out.to == from) continue;
    wanted[from] -= weight(v);
    offers.push({out.change / weight(v), v, out.to});
  }
  // Cheapest first: a lazy queue, whose costs may be outdated until they reach the top.
  while (!offers.empty()) {
    Offer offer = offers.top();
    offers.pop();
    if (_balance.excess(_state, _state.part(offer.v)) <= 0 ||
        !_balance.allows(_state, offer.v, offer.to))
      continue;
    // Other moves may have changed the cost: a move that became costlier is queued again.
    _state.evaluate(offer.v, offer.to, _effect);
    offer.price = _potential.change(_state, _effect) / weight(offer.v);
    if (offers.empty() || offer.price <= offers.top().price)
      move(offer.v, offer.to);
    else
      offers.push(offer);
  }
}

void Annealer::rebalance() {
  if (_balance.total_excess(_state) == 0) return;
  _potential.retarget(_state);
  shed_cheapest();
  if (_balance.total_excess(_state) == 0) return;
  // The remaining weight is in inner vertices, or other parts filled up: now any vertex may move at
  // any cost, since limits come first.
  std::vector<Vertex> order(_state.graph().num_inside());
  std::iota(order.begin(), order.end(), Vertex{0});
  for (int pass = 0; pass < kPasses; ++pass) {
    bool moved = false;
    _random.shuffle(order);
    for (const Vertex v : order)
      if (_balance.excess(_state, _state.part(v)) > 0) moved |= relieve(v);
    if (!moved || _balance.total_excess(_state) == 0) return;
  }
}

Candidate balanced(const Hypergraph& graph, std::vector<Part> start, const Task& task,
                   Random random) {
  const Objective objective = task.options.objective;
  const Score before = score_of(graph, start, task);
  if (before.excess == 0) return {std::move(start), before};
  separate_heavy(graph.vertex_weight, task.num_parts, start);
  State state(graph, task.num_parts, std::move(start));
  const Balance balance(state, task.options.imbalance);
  // Rows above those of the start cost extra, to preserve the quality of the start.
  Potential potential(objective, task.num_parts, task.receive_bound,
                      {kOnlyCycle.finest, before.busiest, before.total});
  Annealer(state, balance, potential, *task.deadline, random).rebalance();
  return {{state.parts().begin(), state.parts().end()}, score(state, balance, objective)};
}

}  // namespace hpcgnn::volpart
