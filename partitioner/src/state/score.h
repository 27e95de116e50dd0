/// Comparison of partitions.
#pragma once

#include "state/balance.h"
#include "state/state.h"
#include "volpart/options.h"

namespace hpcgnn::volpart {

/// A partition within the weight limits beats one that is not; then the busiest load and the
/// average load decide together.
struct Score {
  Weight excess = 0;
  Weight busiest = 0;  ///< The largest priced load; the total if only the total is priced.
  Weight total = 0;
  double value = 0;  ///< What refinement compares: the busiest load and part of the average.

  /// Better in the sense of `value`.
  bool improves(const Score& other) const {
    return excess != other.excess ? excess < other.excess : value < other.value;
  }
  /// Not worse in the objective itself, for any total.
  bool keeps(const Score& other) const {
    return excess != other.excess ? excess < other.excess : busiest <= other.busiest;
  }
};

Score score(const State& state, const Balance& balance, Objective objective);

}  // namespace hpcgnn::volpart
