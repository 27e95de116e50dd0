/// The smooth objective that refinement minimises.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "state/state.h"
#include "volpart/options.h"

namespace hpcgnn::volpart {

/// Weights of loads and totals in the potential.
struct Steepness {
  int doublings;  ///< Base-2 logarithm of the exponent of loads.
  Weight load_cap = std::numeric_limits<Weight>::max();
  Weight total_cap = std::numeric_limits<Weight>::max();
};

/// Every row sent costs 1; beyond that, a load x of a priced direction costs
/// price * reference / exponent * (x / reference)^exponent, so one row more costs
/// price * (x / reference)^(exponent - 1): little at lightly loaded parts, much at the busiest.
/// A maximum has a slope only at one part; this high power of the loads approximates it and rewards
/// moves at any busy part.
/// Rows above a cap on the total, and priced loads above a cap on each part, cost extra.
/// The reference is the average load; for receiving, if larger, the lower bound of the busiest part
/// in any partition: below it, only the total counts.
class Potential {
 public:
  /// @param[in] bound Lower bound of the busiest receiver's rows in any partition.
  Potential(Objective objective, int num_parts, Rows bound, const Steepness& steepness);

  /// Set the references from the current total, and discard all cached costs.
  void retarget(const State& state);
  /// The exact cost after a move minus that before.
  double change(const State& state, const MoveEffect& effect) const;
  /// Update all cached costs after changes of loads; the references stay.
  void reprice(const State& state);
  /// Update the cached costs after a move was applied.
  void follow(const State& state, const MoveEffect& effect);

 private:
  double steep(double relative) const {
    for (int step = 0; step < _steepness.doublings; ++step) relative *= relative;
    return relative;
  }
  double price(Weight load, double reference) const {
    const double excess = static_cast<double>(std::max<Weight>(load - _steepness.load_cap, 0));
    return _scale * reference * steep(static_cast<double>(load) / reference) +
           kPriceOverCap * excess;
  }
  double cost(const Load& load) const {
    return (_price_send ? price(load.send, _send_reference) : 0) +
           (_price_recv ? price(load.recv, _recv_reference) : 0);
  }

  /// Cost of a priced row at a part with the reference load, in addition to the 1 of every row.
  static constexpr double kPriceAtReference = 0.5;
  static constexpr double kPriceOverTotal = 8;
  static constexpr double kPriceOverCap = 16;
  /// A reference just below the bound keeps rows costly at parts whose load is the bound.
  static constexpr double kBoundShare = 0.95;

  bool _price_send, _price_recv;
  Steepness _steepness;
  double _scale;
  double _recv_bound;
  double _send_reference = 1;
  double _recv_reference = 1;
  std::vector<double> _cost;  ///< Of each part's current load; only new ones are evaluated.
};

}  // namespace hpcgnn::volpart
