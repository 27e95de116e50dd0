#include "refinement/potential.h"

#include <algorithm>

namespace hpcgnn::volpart {

Potential::Potential(Objective objective, int num_parts, Rows bound, const Steepness& steepness)
    : _price_send(objective != Objective::kTotal && objective != Objective::kMaxRecv),
      _price_recv(objective != Objective::kTotal && objective != Objective::kMaxSend),
      _steepness(steepness),
      // Divided by the exponent, so that the slope at the reference does not depend on it.
      _scale(kPriceAtReference / (1 << steepness.doublings)),
      _recv_bound(kBoundShare * bound),
      _cost(static_cast<std::size_t>(num_parts)) {}

void Potential::retarget(const State& state) {
  _send_reference = std::max(1.0, static_cast<double>(state.total()) / state.num_parts());
  _recv_reference = std::max(_send_reference, _recv_bound);
  reprice(state);
}

void Potential::reprice(const State& state) {
  for (int p = 0; p < state.num_parts(); ++p)
    _cost[static_cast<std::size_t>(p)] = cost(state.load(static_cast<Part>(p)));
}

double Potential::change(const State& state, const MoveEffect& effect) const {
  double sum = 0;
  Weight rows = 0;
  for (const Part part : effect.touched()) {
    const Load& change = effect.at(part);
    const Load& now = state.load(part);
    // Every row is sent once and received once: count one side.
    rows += change.send;
    if (_price_send || _price_recv)
      sum += cost({now.send + change.send, now.recv + change.recv}) - _cost[part];
  }
  const Weight over = std::max<Weight>(state.total() - _steepness.total_cap, 0);
  const Weight then = std::max<Weight>(state.total() + rows - _steepness.total_cap, 0);
  return sum + static_cast<double>(rows) + kPriceOverTotal * static_cast<double>(then - over);
}

void Potential::follow(const State& state, const MoveEffect& effect) {
  for (const Part part : effect.touched()) _cost[part] = cost(state.load(part));
}

}  // namespace hpcgnn::volpart
