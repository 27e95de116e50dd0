/// What the attention kernels share: the block, dropout by name, the state and its merging.
///
/// Same meaning as hpcgnn/kernels/src/attention.h. For edge (i, j) and head h the logit is
/// e = L(target[r, h] + source[j, h]) with r = rows[i] and the leaky rectifier L.
#pragma once

#include "common.cuh"

namespace hpcgnn {

/// An element is dropped when 32 bits of its name are below `threshold`; 0 = keep all.
struct DropoutBits {
  uint64 key;
  uint64 threshold;
};

struct AttentionBlock {
  Groups groups;            ///< of the pattern, or of its transpose in the backward pass
  const int64* indptr;      ///< of the same pattern
  const int32* indices;     ///< of the same pattern
  const int32* rows;        ///< row of the state of each row of the block; null = identity
  const int64* row_ids;     ///< name of each row of the block; null without dropout
  const int64* column_ids;  ///< name of each column of the block; null without dropout
  const void* z;            ///< (num_columns, num_heads * head_width)
  const void* source;       ///< (num_columns, num_heads)
  const void* target;       ///< (num_targets, num_heads)
  DropoutBits edges;        ///< of edges with all their heads, before the softmax
  DropoutBits weights;      ///< of weights, each head for itself; those that stay are scaled
  double scale;
  double slope;
  int64 num_heads;
  int64 head_width;
  int32 lanes;
};

/// top, total: (rows, num_heads); out: (rows, num_heads * head_width).
struct AttentionState {
  void* top;
  void* total;
  void* out;
};

constexpr uint64 kHeadStep = 0xd1342543de82ef95u;

HPCGNN_DEVICE bool dropped(const AttentionBlock& b, const DropoutBits& bits, int64 row,
                           int64 column, int64 head) {
  if (bits.threshold == 0) return false;
  const uint64 edge =
      row_stream(bits.key, b.row_ids[row]) + static_cast<uint64>(b.column_ids[column]) * kGolden;
  return (mix_bits(edge + static_cast<uint64>(head) * kHeadStep) & 0xffffffffu) < bits.threshold;
}

/// 0 or the scale of the weights that stay.
template <class T>
HPCGNN_DEVICE T kept_share(const AttentionBlock& b, int64 row, int64 column, int64 head) {
  if (b.weights.threshold == 0) return T(1);
  return dropped(b, b.weights, row, column, head) ? T(0) : static_cast<T>(b.scale);
}

HPCGNN_DEVICE int64 state_row(const AttentionBlock& b, int64 row) {
  return b.rows ? b.rows[row] : row;
}

template <class T>
HPCGNN_DEVICE T rectified(T x, T slope) {
  return x > 0 ? x : slope * x;
}

/// Maximum and sum of a softmax that edges join batch by batch.
template <class T>
struct RunningSoftmax {
  T top, total;

  /// Take in the logits of a tile, one a thread. Returns the thread's exp(logit - top); what sums
  /// so far count for goes to `scale`.
  HPCGNN_DEVICE T join(const Tile& tile, T logit, T& scale) {
    const T none = -infinity<T>(), old = top;
    const T largest = largest_of_tile(tile, logit);
    if (largest > top) top = largest;
    // Where all edges are left out, exp(-inf - 0) is 0, and -inf - -inf would be no number.
    const T weight = exponential(logit - (top == none ? T(0) : top));
    scale = old == none ? T(0) : old == top ? T(1) : exponential(old - top);
    total = total * scale + sum_of_tile(tile, weight);
    // A logit that is no number is never the largest: the sum tells.
    if (total != total) top = total;
    return weight;
  }

  /// Take in another state; what the sums of both count for goes to `mine` and `theirs`.
  HPCGNN_DEVICE void merge(const RunningSoftmax& other, T& mine, T& theirs) {
    const T none = -infinity<T>();
    mine = 1, theirs = 0;
    if (other.top == none) return;
    if (top == none) {
      *this = other, mine = 0, theirs = 1;
      return;
    }
    const T larger = top < other.top ? other.top : top;
    mine = exponential(top - larger), theirs = exponential(other.top - larger);
    top = larger;
    total = mine * total + theirs * other.total;
  }
};

}  // namespace hpcgnn
