/// Attention whose logits see both rows of an edge (GATv2), on the CPU, without tensors of edges.
///
///     e = <vector[h, :], L(target[i, h, :] + z[j, h, :])>
///
/// with the softmax, the sums, the running state and the dropout of attention.h. An AttentionBlock
/// holds the operands: here `target` has num_heads * head_width columns, and `source` is `vector`,
/// one row of as many. No result depends on `num_threads`.
#pragma once

#include "attention.h"

namespace hpcgnn::kernels {

/// Add the edges of a block to the state of its rows. The indices of row i are columns.
void attention_v2_forward(const AttentionBlock& block, const AttentionState& state);

/// Operands of the backward passes; see AttentionGradients.
struct AttentionV2Gradients {
  const void* lse;
  const void* grad;
  const void* delta;
  void* dz;       ///< of the pass over columns
  void* dtarget;  ///< of the pass over rows, like dvector
  void* dvector;
};

/// Add the gradients of target and vector. `indptr` and `indices` are those of the forward pass.
void attention_v2_backward_rows(const AttentionBlock& block, const AttentionV2Gradients& gradients);

/// Add the gradient of z. `indptr` and `indices` are those of the transpose.
void attention_v2_backward_columns(const AttentionBlock& block,
                                   const AttentionV2Gradients& gradients);

}  // namespace hpcgnn::kernels
