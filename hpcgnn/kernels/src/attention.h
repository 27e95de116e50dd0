/// Softmax attention over the non-zeros of a sparse block, on the CPU, without tensors of edges.
///
/// For edge (i, j) and head h, with the leaky rectifier L of a given slope,
///
///     e = L(target[i, h] + source[j, h])                     (GAT)
///     out[i, h, :] = sum over j of alpha * z[j, h, :],        alpha = softmax over j of e
///
/// Blocks add to the running state of attention_state.h. Matrices are row-major without padding;
/// heads lie one after the other in a row. Storage of z is `storage`; everything else is of its
/// accumulator type.
#pragma once

#include <cstdint>

#include "attention_state.h"
#include "types.h"

namespace hpcgnn::kernels {

/// Whether an edge is left out, a function of names: the same in every block, pass and thread.
struct EdgeDropout {
  std::uint64_t key;
  double p;  ///< in [0, 1]; 0 = none
};

/// What one block shares between forward and backward.
struct AttentionBlock {
  const std::int64_t* indptr;
  const std::int32_t* indices;
  const std::int32_t* rows;        ///< row of the state of each row of the block; null = identity
  const std::int64_t* row_ids;     ///< name of each row of the block; null without dropout
  const std::int64_t* column_ids;  ///< name of each column of the block; null without dropout
  const void* z;                   ///< num_columns by num_heads * head_width
  const void* source;              ///< num_columns by num_heads
  const void* target;              ///< num_targets by num_heads
  std::int64_t num_rows;
  std::int64_t num_columns;
  std::int64_t num_nonzeros;
  std::int64_t num_targets;  ///< rows of the state
  std::int64_t num_heads;
  std::int64_t head_width;
  EdgeDropout weight_dropout;  ///< of alpha, each head for itself; survivors grow by 1 / (1 - p)
  EdgeDropout edge_dropout;    ///< of edges, before the softmax
  double slope;
  Storage storage;
  int num_threads;  ///< 0 = OpenMP default
  Isa isa;
};

/// Add the edges of a block to the state of its rows. The indices of row i are columns. Rows are
/// cut into pieces of a fixed number of edges: results do not depend on `num_threads`.
void attention_forward(const AttentionBlock& block, const AttentionState& state);

/// Operands of the backward pass, each as tall as the state or the columns.
struct AttentionGradients {
  const void* lse;    ///< what attention_finish left in top
  const void* grad;   ///< gradient of the finished out
  const void* delta;  ///< <grad, out> of each row and head
  void* dz;
  void* dsource;
  void* dtarget;
  /// Where source = <weights, z>, num_heads by head_width, the gradient of source goes on into dz
  /// and dweights; null = source is an operand of its own.
  const void* weights;
  void* dweights;
};

/// Add the gradients of z, source and target. `indptr` and `indices` are those of the *transpose*:
/// num_columns + 1 offsets of rows of the block. Walking it, a column's z stays in cache, and one
/// row of `grad` is read for each edge and head, for both <grad, z> and the gradient of z: a third
/// of the bytes that walking rows would move. Results do not depend on `num_threads`.
void attention_backward(const AttentionBlock& block, const AttentionGradients& gradients);

}  // namespace hpcgnn::kernels
