#include "state/score.h"

#include <algorithm>

namespace hpcgnn::volpart {

Score score(const State& state, const Balance& balance, Objective objective) {
  constexpr double kAverageShare = 0.5;
  Score found{balance.total_excess(state), 0, state.total(), 0};
  const double average = static_cast<double>(state.total()) / state.num_parts();
  for (int p = 0; p < state.num_parts(); ++p) {
    const Load& load = state.load(static_cast<Part>(p));
    if (objective != Objective::kMaxRecv) found.busiest = std::max(found.busiest, load.send);
    if (objective != Objective::kMaxSend) found.busiest = std::max(found.busiest, load.recv);
  }
  if (objective == Objective::kTotal) found.busiest = found.total;
  found.value = static_cast<double>(found.busiest) + kAverageShare * average;
  return found;
}

}  // namespace hpcgnn::volpart
