#include "potential.h"

#include <algorithm>

namespace hpcgnn::volpart {

Potential::Potential(Objective objective, int num_parts, Weight bound)
    : _price_send(objective != Objective::kTotal && objective != Objective::kMaxRecv),
      _price_recv(objective != Objective::kTotal && objective != Objective::kMaxSend),
      _bound(bound),
      _cost(static_cast<std::size_t>(num_parts)) {}

void Potential::retarget(const State& state) {
  const double average = static_cast<double>(state.total()) / state.num_parts();
  const double reference = std::max({1.0, average, static_cast<double>(_bound)});
  _inverse = 1 / reference;
  _scale = kPriceAtReference * reference / (1 << kDoublings);
  for (std::size_t p = 0; p < _cost.size(); ++p) _cost[p] = cost(state.load(static_cast<Part>(p)));
}

double Potential::change(const State& state, const MoveEffect& effect) const {
  double sum = 0;
  Weight rows = 0;
  for (const Part part : effect.touched()) {
    const Load& change = effect.at(part);
    const Load& now = state.load(part);
    rows += change.send;
    if (_price_send || _price_recv)
      sum += cost({now.send + change.send, now.recv + change.recv}) - _cost[part];
  }
  return sum + static_cast<double>(rows);
}

void Potential::follow(const State& state, const MoveEffect& effect) {
  for (const Part part : effect.touched()) _cost[part] = cost(state.load(part));
}

}  // namespace hpcgnn::volpart
