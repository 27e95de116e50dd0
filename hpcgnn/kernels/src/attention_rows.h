/// Which edges go by in one batch, and the rows of the state that they belong to.
#pragma once

#include <cstdint>

#include "attention.h"
#include "attention_columns.h"
#include "attention_softmax.h"

namespace hpcgnn::kernels {

/// Edges whose rows of `head_width` elements of type T fit the level-1 cache between two uses.
template <class V, class T>
HPCGNN_INLINE std::int64_t cached_batch(std::int64_t head_width) {
  constexpr std::int64_t kBytes = 16 << 10;
  const std::int64_t fitting = kBytes / static_cast<std::int64_t>(sizeof(T)) / head_width;
  const std::int64_t whole = fitting / V::kLanes * V::kLanes;
  return whole > kBatch ? kBatch : whole < V::kLanes ? V::kLanes : whole;
}

/// The rows of the state of consecutive edges of a transposed pattern, those of one batch and those
/// that prefetching looks ahead to.
class StateRows {
 public:
  HPCGNN_INLINE StateRows(const AttentionBlock& b, std::int64_t row_bytes)
      : b_(b), ahead_(prefetch_distance(row_bytes < kMostBytes ? row_bytes : kMostBytes)) {}

  /// Known entries from edge `first` on, for a batch of `count`.
  HPCGNN_INLINE std::int64_t known(std::int64_t first, std::int64_t count) const {
    const std::int64_t left = b_.num_nonzeros - first, wanted = 2 * count + ahead_;
    return left < wanted ? left : wanted;
  }

  HPCGNN_INLINE const std::int32_t* find(std::int64_t first, std::int64_t count) {
    if (b_.rows == nullptr) return b_.indices + first;
    const std::int64_t entries = known(first, count);
    for (std::int64_t e = 0; e < entries; ++e) buffer_[e] = b_.rows[b_.indices[first + e]];
    return buffer_;
  }

 private:
  static constexpr std::int64_t kMostBytes = 512;

  const AttentionBlock& b_;
  std::int64_t ahead_;
  std::int32_t buffer_[2 * kBatch + kLineFills];
};

}  // namespace hpcgnn::kernels
