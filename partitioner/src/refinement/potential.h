/// The smooth objective that refinement descends.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "state/state.h"
#include "volpart/options.h"

namespace hpcgnn::volpart {

/// How strongly loads and totals above others are priced.
struct Steepness {
  int doublings;  ///< The exponent of loads is two to the power of this.
  Weight load_cap = std::numeric_limits<Weight>::max();
  Weight total_cap = std::numeric_limits<Weight>::max();
};

/// Every row sent costs 1; beyond that, a load x of a priced direction costs
/// price * reference / exponent * (x / reference)^exponent, so one row more costs
/// price * (x / reference)^(exponent - 1): nothing at lightly loaded parts, much at the busiest.
/// A maximum has no slope except at its one part; this high power of the loads stands for it and
/// lets a move at any busy part count.
/// Rows above a cap on the total, and priced loads above one on each part, cost extra.
/// The reference is the average load; for receiving, a bound on the busiest that no partition can
/// undercut where that is larger: below it, only the total counts.
class Potential {
 public:
  /// @param[in] bound Rows that the busiest receiver gets in every partition.
  Potential(Objective objective, int num_parts, Rows bound, const Steepness& steepness);

  /// Set the references by the present total, and forget all cached costs.
  void retarget(const State& state);
  /// Cost after minus cost before, exactly.
  double change(const State& state, const MoveEffect& effect) const;
  /// Follow loads that have changed anywhere; the references stay.
  void reprice(const State& state);
  /// Follow the loads of a move that was applied.
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

  /// Price of a priced row at a part whose load is the reference, beside the 1 of every row.
  static constexpr double kPriceAtReference = 0.5;
  static constexpr double kPriceOverTotal = 8;
  static constexpr double kPriceOverCap = 16;
  /// A reference just below the bound keeps the price of a row felt where the bound binds.
  static constexpr double kBoundShare = 0.95;

  bool _price_send, _price_recv;
  Steepness _steepness;
  double _scale;
  double _recv_bound;
  double _send_reference = 1;
  double _recv_reference = 1;
  std::vector<double> _cost;  ///< Of each part's present load, so that a proposal prices one state.
};

}  // namespace hpcgnn::volpart
