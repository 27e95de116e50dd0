#include "annealing.h"

#include <cmath>
#include <numeric>

namespace hpcgnn::volpart {
namespace {

constexpr std::uint64_t kProposalsPerClock = 1024;
constexpr std::uint32_t kAnyPartOneIn = 64;
constexpr int kRebalancePasses = 6;
constexpr int kReliefProposals = 8;

}  // namespace

void Annealer::list_boundary() {
  _boundary.clear();
  for (Vertex v = 0; v < _state.graph().num_vertices(); ++v)
    if (_state.on_boundary(v)) _boundary.push_back(v);
}

Part Annealer::propose(Vertex v) {
  const Hypergraph& graph = _state.graph();
  const std::span<const Net> nets = graph.nets_of(v);
  const Net owned = graph.owned_begin[v + 1] - graph.owned_begin[v];
  const bool anywhere = nets.empty() && owned == 0;
  if (anywhere || _random.below(kAnyPartOneIn) == 0)
    return static_cast<Part>(_random.below(static_cast<std::uint64_t>(_state.num_parts())));
  const bool through_owned = owned != 0 && (nets.empty() || _random.below(2) == 0);
  const Net net = through_owned ? graph.owned_begin[v] + _random.below(owned)
                                : nets[_random.below(nets.size())];
  if (!through_owned && _random.below(2) == 0) return _state.part(graph.net_owner[net]);
  const std::span<const Vertex> pins = graph.pins_of(net);
  return _state.part(pins[_random.below(pins.size())]);
}

void Annealer::move(Vertex v, Part q) {
  _state.apply(v, q, _effect);
  _potential.follow(_state, _effect);
}

void Annealer::sweep(double temperature, double proposals) {
  list_boundary();
  if (_boundary.empty()) return;
  _potential.retarget(_state);
  const auto count =
      static_cast<std::uint64_t>(proposals * static_cast<double>(_boundary.size())) + 1;
  for (std::uint64_t done = 0; done < count; ++done) {
    if (done % kProposalsPerClock == 0 && _deadline.passed()) return;
    const Vertex v = _boundary[_random.below(_boundary.size())];
    const Part q = propose(v);
    if (q == _state.part(v) || !_balance.allows(_state, v, q)) continue;
    _state.evaluate(v, q, _effect);
    const double change = _potential.change(_state, _effect);
    if (change <= 0 || _random.unit() < std::exp(-change / temperature)) move(v, q);
  }
}

bool Annealer::relieve(Vertex v) {
  Part best = _state.part(v);
  double least = 0;
  const auto consider = [&](Part q) {
    if (q == _state.part(v) || !_balance.allows(_state, v, q)) return;
    _state.evaluate(v, q, _effect);
    const double change = _potential.change(_state, _effect);
    if (best != _state.part(v) && change >= least) return;
    best = q;
    least = change;
  };
  for (int trial = 0; trial < kReliefProposals; ++trial) consider(propose(v));
  Part roomiest = 0;
  for (int p = 1; p < _state.num_parts(); ++p)
    if (_balance.excess(_state, static_cast<Part>(p)) < _balance.excess(_state, roomiest))
      roomiest = static_cast<Part>(p);
  if (best == _state.part(v)) consider(roomiest);
  if (best == _state.part(v)) return false;
  _state.evaluate(v, best, _effect);
  move(v, best);
  return true;
}

void Annealer::rebalance() {
  if (_balance.total_excess(_state) == 0) return;
  _potential.retarget(_state);
  std::vector<Vertex> order(_state.graph().num_vertices());
  std::iota(order.begin(), order.end(), Vertex{0});
  for (int pass = 0; pass < kRebalancePasses; ++pass) {
    bool moved = false;
    _random.shuffle(order);
    for (const Vertex v : order)
      if (_balance.excess(_state, _state.part(v)) > 0) moved |= relieve(v);
    if (!moved || _balance.total_excess(_state) == 0) return;
  }
}

}  // namespace hpcgnn::volpart
