/// Options of the partitioner.
#pragma once

#include <cstdint>
#include <limits>

namespace hpcgnn::volpart {

/// The quantity to minimise, under the bound on imbalance. Every objective but kTotal minimises the
/// total once the maximum cannot be lowered.
enum class Objective : std::uint8_t {
  /// Total rows sent (connectivity minus one).
  kTotal,
  /// Rows sent by the busiest sender.
  kMaxSend,
  /// Rows received by the busiest receiver.
  kMaxRecv,
  /// The larger of the two.
  kMaxBoth,
  /// As kMaxBoth, for the joint exchange, which fetches some rows and pushes partial sums of
  /// others: every non-zero is priced on the side of its row or of its column, whichever has more
  /// non-zeros. Such a split covers every block, so it never prices below the minimum vertex cover
  /// that the exchange uses.
  kJoint,
};

/// The amount of work.
enum class Preset : std::uint8_t { kFast, kDefault };

struct Options {
  Objective objective = Objective::kMaxBoth;
  Preset preset = Preset::kDefault;
  /// Allowed weight of a part: (1 + imbalance) times the larger of the average and its heaviest
  /// node. If node weights are too coarse for this, the closest partition found is returned.
  double imbalance = 0.05;
  std::uint64_t seed = 0;
  /// Number of independent parallel refinements, at least 1; the best one is kept. The result
  /// depends on the seed and on this number, not on timing.
  int threads = 1;
  /// Elapsed time after which the best partition so far is returned; if the limit is reached, the
  /// result depends on the machine.
  double time_limit_s = std::numeric_limits<double>::infinity();
};

}  // namespace hpcgnn::volpart
