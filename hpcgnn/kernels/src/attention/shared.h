/// Softmax attention (GAT) whose heads read the same rows: the input, before it is projected.
///
/// With out[i, h] = W_h mean[i, h], where mean[i, h] = sum over j of alpha[i, j, h] x[j], a row of
/// x is read from memory once for all heads, while the kernels of attention.h read a row of W_h x
/// for each. All edges of a row must be in the block: there is no state to merge.
///
/// Blocks are those of attention.h with additive scores, for some rows of a pattern: values is x,
/// of which all heads read whole rows, of head_width elements; indptr need not start at 0, and
/// num_nonzeros counts all indices. `rows` and 16-bit x are not supported.
#pragma once

#include "attention/attention.h"
#include "attention/problem.h"

namespace hpcgnn::kernels {

/// Rows of `pitch` elements for each row of the block and head.
struct SharedMeans {
  void* mean;
  void* lse;  ///< num_rows by num_heads: log of the sum of exp(e); -inf for rows without edges
  std::int64_t pitch;
};

/// @param heads_per_word heads [k * heads_per_word, ...) draw the weights that they drop as heads
/// 0, 1 ... of a block whose word is larger by k * heads_per_word * kGolden.
void shared_forward(const AttentionBlock& block, const SharedMeans& means,
                    std::int64_t heads_per_word);

struct SharedGradients {
  SharedMeans means;  ///< of the forward pass
  const void* grad;   ///< of the means, with their pitch
  void* dx;           ///< null = not wanted
  void* dsource;      ///< num_slices by num_columns by num_heads, to be summed over the slices
  void* dtarget;
  std::int64_t num_slices;
};

/// Add the gradients of x (without those through source), source and target. Results do not depend
/// on `num_threads`.
void shared_backward(const AttentionBlock& block, const SharedGradients& gradients,
                     std::int64_t heads_per_word);

/// Largest number of heads that share a read of x.
inline constexpr std::int64_t kSharingHeads = 8;

/// A block, and how its heads draw the weights to drop.
struct SharedProblem : AttentionProblem {
  std::int64_t heads_per_word;  ///< weights.streams has num_rows of them for every such heads
};

/// Rows [first_row, last_row) of a block, heads [first_head, last_head).
struct SharedTask {
  std::int64_t first_row;
  std::int64_t last_row;
  std::int64_t first_head;
  std::int64_t last_head;
};

struct ColumnRange {
  std::int64_t first;
  std::int64_t last;
};

struct SharedKernels {
  void (*forward)(const SharedProblem&, const SharedTask&, const SharedMeans&);
  /// Gradients of target and source, the latter in one slice.
  void (*backward_rows)(const SharedProblem&, const SharedTask&, const SharedGradients&,
                        void* dsource);
  /// The gradient of a range of rows of x.
  void (*backward_columns)(const SharedProblem&, const SharedTask&, const SharedGradients&,
                           const ColumnRange&);
};

struct SharedTable {
  SharedKernels float32, float64;

  static const SharedTable portable, avx2, avx512;  ///< see table_of
};

}  // namespace hpcgnn::kernels
