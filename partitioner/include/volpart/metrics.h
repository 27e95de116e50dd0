/// The cost of a partition in one forward aggregation. The library scores every candidate by these
/// metrics; hpcgnn.partition.measure and CommPlan.volume() count the same rows.
#pragma once

#include <cstdint>
#include <span>

#include "volpart/csr.h"

namespace hpcgnn::volpart {

inline constexpr int kMaxParts = 1 << 16;

/// The part that owns node j *sends* row j of the dense operand once to every other part that owns
/// a row with a non-zero in column j; that part *receives* it. A diagonal entry costs nothing, and
/// a repeated entry counts once.
struct Metrics {
  /// Stored non-zeros whose row and column lie in different parts.
  std::int64_t edge_cut = 0;
  /// Rows sent by all parts (the sum over parts of sends, and of receives).
  std::int64_t total_rows = 0;
  /// Rows sent by the busiest sender, received by the busiest receiver, and sent between the
  /// busiest ordered pair of parts.
  std::int64_t max_send_rows = 0;
  std::int64_t max_recv_rows = 0;
  std::int64_t max_pair_rows = 0;
  /// Maximum over the parts of weight(p) / max(average weight, heaviest node of p), minus one: 0 is
  /// perfect, and a node heavier than the average does not count as imbalance if it is alone.
  double imbalance = 0;
};

/// Count the metrics of `part` from their definition, independently of incremental bookkeeping.
/// @param[in] part One part number in [0, num_parts) for each row.
/// @param[in] weights Weight of each row; empty means its stored non-zeros.
/// @pre csr.check() passes and `part` is in range.
/// Memory: O(rows + parts).
Metrics measure(const CsrView& csr, std::span<const std::int32_t> part, int num_parts,
                std::span<const std::int64_t> weights);

/// @throws std::invalid_argument unless `num_parts` is in [1, kMaxParts].
void check_parts(int num_parts);

/// @throws std::invalid_argument unless `num_parts` is in [1, kMaxParts] and `part` has one number
/// in [0, num_parts) for each row.
void check_parts(const CsrView& csr, std::span<const std::int32_t> part, int num_parts);

/// @throws std::invalid_argument unless `weights` is empty or has one number in [0, 2^31] for each
/// row.
void check_weights(const CsrView& csr, std::span<const std::int64_t> weights);

}  // namespace hpcgnn::volpart
