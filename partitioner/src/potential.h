/// The smooth objective that refinement descends.
#pragma once

#include <vector>

#include "state.h"
#include "volpart/options.h"

namespace hpcgnn::volpart {

/// Every row sent costs 1; beyond that, a load x of a priced direction costs
/// price * reference / exponent * (x / reference)^exponent, so one row more costs
/// price * (x / reference)^(exponent - 1): nothing at lightly loaded parts, much at the busiest.
/// The reference is the average load, or a bound that no partition can undercut where that is
/// larger.
class Potential {
 public:
  Potential(Objective objective, int num_parts, Weight bound);

  /// Set the reference to the present average, and forget all cached costs.
  void retarget(const State& state);
  /// Cost after minus cost before, exactly.
  double change(const State& state, const MoveEffect& effect) const;
  /// Follow the loads of a move that was applied.
  void follow(const State& state, const MoveEffect& effect);

 private:
  double steep(Weight load) const {
    double power = static_cast<double>(load) * _inverse;
    for (int step = 0; step < kDoublings; ++step) power *= power;
    return _scale * power;
  }
  double cost(const Load& load) const {
    return (_price_send ? steep(load.send) : 0) + (_price_recv ? steep(load.recv) : 0);
  }

  static constexpr int kDoublings = 5;  ///< The exponent is 2^5.
  /// Price of a priced row at a part whose load is the reference, beside the 1 of every row.
  static constexpr double kPriceAtReference = 0.5;

  bool _price_send, _price_recv;
  Weight _bound;
  double _inverse = 1, _scale = 1;
  std::vector<double> _cost;
};

}  // namespace hpcgnn::volpart
