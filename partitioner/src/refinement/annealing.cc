#include "refinement/annealing.h"

#include <algorithm>
#include <cmath>

namespace hpcgnn::volpart {
namespace {

/// Visits between readings of the clock, which take longer than evaluating a move.
constexpr std::size_t kVisitsPerClock = 256;
/// One proposal in this many draws any part, even one that shares no net with the vertex: without
/// them some partitions could not be reached, and with more of them most would be hopeless.
constexpr std::uint32_t kAnyPartOneIn = 64;
constexpr std::uint64_t kReplaceOneIn = 8;
/// A vertex with more nets than this many times the average gets fewer proposals: each takes time
/// in proportion to its nets and is rarely accepted.
constexpr double kNetsOverMean = 4;
/// Exchanges of loads between shares per sweep. With outdated loads, all shares would leave the
/// same busiest part together, and move to the same lightest part.
constexpr std::size_t kExchangesPerSweep = 8;

}  // namespace

// A vertex whose nets all lie inside its part can only cut nets by leaving. The list is made once
// per sweep: vertices that join the boundary during a sweep wait for the next one.
void Annealer::list_boundary() {
  _boundary.clear();
  for (Vertex v = 0; v < _state.graph().num_inside(); ++v)
    if (_state.on_boundary(v)) _boundary.push_back(v);
}

Part Annealer::propose(Vertex v) {
  const Hypergraph& graph = _state.graph();
  const Packed::List nets = graph.nets_of(v);
  const Net owned = graph.owned_begin[v + 1] - graph.owned_begin[v];
  const bool anywhere = nets.empty() && owned == 0;
  if (anywhere || _random.below(kAnyPartOneIn) == 0)
    return static_cast<Part>(_random.below(static_cast<std::uint64_t>(_state.num_own())));
  // The part of a neighbour in a random net that v owns or is a pin of: parts that share many nets
  // of v are drawn often, without a list of candidate parts.
  const bool through_owned = owned != 0 && (nets.empty() || _random.below(2) == 0);
  const Net net = through_owned ? graph.owned_begin[v] + _random.below(owned)
                                : nets[_random.below(nets.size())];
  if (!through_owned && _random.below(2) == 0)
    if (const Part owner = _state.connectivity().owner_part(net); owner < _state.num_own())
      return owner;
  const Packed::List pins = graph.pins_of(net);
  return _state.part(pins[_random.below(pins.size())]);
}

void Annealer::move(Vertex v, Part q) {
  _state.apply(v, q, _effect);
  _potential.follow(_state, _effect);
}

/// Move v to q if that raises the potential by at most `limit`.
void Annealer::try_move(Vertex v, Part q, double limit) {
  _state.evaluate(v, q, _effect);
  const double change = _potential.change(_state, _effect);
  if (change <= limit) {
    move(v, q);
    return;
  }
  // Keep the cheapest refused move for an exchange; sometimes replace it at random, since its cost
  // may have risen meanwhile.
  std::optional<Refused>& known = _refused[_state.part(v)];
  if (!known || change < known->change || _random.below(kReplaceOneIn) == 0)
    known = Refused{v, q, change};
}

/// Move v to the full part q, and the vertex whose move out of q was last refused out of q, if both
/// moves together raise the potential by at most `limit`.
void Annealer::try_exchange(Vertex v, Part q, double limit) {
  const Part p = _state.part(v);
  std::optional<Refused>& known = _refused[q];
  if (known && _state.part(known->v) != q) known.reset();
  if (!known || !_balance.allows_exchange(_state, v, q, known->v, known->to)) {
    // If all parts are full, no move is ever refused because of its cost.
    if (!_refused[p]) _refused[p] = Refused{v, q, 0};
    return;
  }
  const auto [u, r, expected] = *known;
  // The cost of the second move is exact only after the first, which is undone if both cost too
  // much.
  _state.evaluate(v, q, _effect);
  const double first = _potential.change(_state, _effect);
  if (first > limit || first + expected > limit) return;
  move(v, q);
  _state.evaluate(u, r, _effect);
  const double second = _potential.change(_state, _effect);
  known.reset();
  if (first + second <= limit) {
    move(u, r);
    return;
  }
  _state.evaluate(v, p, _effect);
  move(v, p);
}

// Proposals of one vertex read the same nets, which are loaded into the cache once for all of them.
void Annealer::visit(Vertex v, int proposals, double temperature) {
  _candidates.clear();
  for (; proposals > 0; --proposals) _candidates.push_back(propose(v));
  for (const Part q : _candidates) {
    if (q == _state.part(v)) continue;
    // Metropolis: exp(-change / temperature) > u, solved for the change: one logarithm per
    // proposal.
    const double limit = -temperature * std::log(1 - _random.unit());
    if (_balance.allows(_state, v, q)) try_move(v, q, limit);
    // Under tight limits nearly every part is full: single moves are impossible, but pairs that
    // make room for each other are not.
    else if (_balance.is_free(_state, v))
      try_exchange(v, q, limit);
  }
}

void Annealer::sweep(double temperature, int proposals) {
  list_boundary();
  if (_boundary.empty()) return;
  if (_state.exchange_loads()) _potential.reprice(_state);
  // Changes add up exactly only while the references are constant, so these are updated only
  // between sweeps.
  _potential.retarget(_state);
  _refused.assign(static_cast<std::size_t>(_state.num_parts()), std::nullopt);
  const auto nets = [&](Vertex v) { return static_cast<double>(_state.graph().num_nets_of(v)); };
  double sum = 0;
  for (const Vertex v : _boundary) sum += nets(v);
  const double most = kNetsOverMean * sum / static_cast<double>(_boundary.size());
  _random.shuffle(_boundary);
  const std::size_t slice = _boundary.size() / kExchangesPerSweep + 1;
  for (std::size_t done = 0; done < _boundary.size(); ++done) {
    if (done % kVisitsPerClock == 0 && _deadline.passed()) return;
    if (done % slice == slice - 1 && _state.exchange_loads()) _potential.reprice(_state);
    const Vertex v = _boundary[done];
    const double count = proposals * std::min(1.0, most / nets(v));
    visit(v, static_cast<int>(count + _random.unit()), temperature);
  }
}

}  // namespace hpcgnn::volpart
