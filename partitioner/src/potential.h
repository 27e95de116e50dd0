/// The smooth objective that refinement descends.
#pragma once

#include <algorithm>
#include <span>
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
  /// @param[in] bounds For each vertex, rows that its part receives in every partition.
  /// @param[in] cap Priced load above which every row costs much more.
  Potential(Objective objective, int num_parts, std::span<const Weight> bounds, Weight cap);

  /// Set the references by the present loads and parts, and forget all cached costs.
  void retarget(const State& state);
  /// Cost after minus cost before, exactly.
  double change(const State& state, const MoveEffect& effect) const;
  /// Follow the loads of a move that was applied.
  void follow(const State& state, const MoveEffect& effect);

 private:
  static double steep(double relative) {
    for (int step = 0; step < kDoublings; ++step) relative *= relative;
    return relative;
  }
  double price(Weight load, double reference) const {
    const double excess = static_cast<double>(std::max<Weight>(load - _cap, 0));
    return kScale * reference * steep(static_cast<double>(load) / reference) +
           kPriceOverCap * excess;
  }
  double cost(Part part, const Load& load) const {
    return (_price_send ? price(load.send, _send_reference) : 0) +
           (_price_recv ? price(load.recv, _recv_reference[part]) : 0);
  }

  static constexpr int kDoublings = 5;  ///< The exponent is 2^5.
  /// Price of a priced row at a part whose load is the reference, beside the 1 of every row.
  static constexpr double kPriceAtReference = 0.5;
  static constexpr double kScale = kPriceAtReference / (1 << kDoublings);

  static constexpr double kPriceOverCap = 16;
  /// A reference just below the bound keeps the price of a row felt where the bound binds.
  static constexpr double kBoundShare = 0.95;

  bool _price_send, _price_recv;
  std::span<const Weight> _bounds;
  Weight _cap;
  double _send_reference = 1;
  std::vector<double> _recv_reference;
  std::vector<double> _cost;
};

}  // namespace hpcgnn::volpart
