#include "refinement/annealing.h"

#include <algorithm>
#include <cmath>

namespace hpcgnn::volpart {
namespace {

/// A clock is dearer to read than a move is to price.
constexpr std::size_t kVisitsPerClock = 256;
/// So rarely a part is drawn that may share no net with the vertex: without it some partitions
/// could not be reached, with more of it most proposals would be hopeless.
constexpr std::uint32_t kAnyPartOneIn = 64;
constexpr std::uint64_t kReplaceOneIn = 8;
/// A vertex with more nets than so many times the average gets fewer proposals, as each takes time
/// in proportion to its nets and is seldom made.
constexpr double kNetsOverMean = 4;
/// So often in a sweep shares tell each other their loads. Without it, all would leave the busiest
/// part of a moment ago together, and meet at the lightest.
constexpr std::size_t kExchangesPerSweep = 8;

}  // namespace

// A vertex all of whose nets lie in its part can only cut nets by leaving. The list is made once a
// sweep: vertices that come to the boundary meanwhile wait for the next one.
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
  // A neighbour's part, through a random net on either side of v: parts that share much of v's nets
  // come up often, and no list of candidate parts has to be kept.
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
  // The cheapest refusal waits for an exchange; now and then another takes its place, as a state
  // that has moved on may have made it dear.
  std::optional<Refused>& known = _refused[_state.part(v)];
  if (!known || change < known->change || _random.below(kReplaceOneIn) == 0)
    known = Refused{v, q, change};
}

/// Move v to the full part q and the vertex that was last refused to leave q out of it, if both
/// together raise the potential by at most `limit`.
void Annealer::try_exchange(Vertex v, Part q, double limit) {
  const Part p = _state.part(v);
  std::optional<Refused>& known = _refused[q];
  if (known && _state.part(known->v) != q) known.reset();
  if (!known || !_balance.allows_exchange(_state, v, q, known->v, known->to)) {
    // Where all parts are full, no move is ever refused for its cost.
    if (!_refused[p]) _refused[p] = Refused{v, q, 0};
    return;
  }
  const auto [u, r, expected] = *known;
  // The price of the second move is exact only after the first, which is taken back if it is too
  // dear.
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

// Moves of one vertex ask for the same nets, which come into the cache once for all of them.
void Annealer::visit(Vertex v, int proposals, double temperature) {
  _candidates.clear();
  for (; proposals > 0; --proposals) _candidates.push_back(propose(v));
  for (const Part q : _candidates) {
    if (q == _state.part(v)) continue;
    // Metropolis: exp(-change / temperature) > u, solved for the change, so one logarithm a
    // proposal.
    const double limit = -temperature * std::log(1 - _random.unit());
    if (_balance.allows(_state, v, q)) try_move(v, q, limit);
    // Under tight limits nearly every part is full: single moves would stand still, and two that
    // make room for each other do not.
    else if (_balance.is_free(_state, v))
      try_exchange(v, q, limit);
  }
}

void Annealer::sweep(double temperature, int proposals) {
  list_boundary();
  if (_boundary.empty()) return;
  if (_state.exchange_loads()) _potential.reprice(_state);
  // Changes add up exactly only while the references stay, so they move between sweeps and not in
  // them.
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
