/// Softmax attention over the non-zeros of a sparse block, on the CPU, without tensors of edges.
///
/// For edge (i, j) and head h, with the leaky rectifier L of a given slope,
///
///     e = L(target[i, h] + source[j, h] + edges[ij, h])       additive scores (GAT)
///     e = <vector[h, :], L(target[i, h, :] + z[j, h, :])>     dynamic scores (GATv2)
///     e = <target[i, h, :], key[j, h, :]>                     products; z is then the value of j
///     out[i, h, :] = sum over j of alpha * z[j, h, :],        alpha = softmax over j of e
///
/// Blocks add to a running state of the edges so far. It has, for each row and head, `top`, the
/// largest logit e, `total`, the sum of exp(e - top), and `out`, the sum of exp(e - top) z.
/// States of any two sets of edges merge exactly, so blocks, peers and replicas may come in any
/// order (SAR paper, section 3.4). A state with top = -inf holds no edge; its `out` is never read.
///
/// Matrices are row-major without padding; heads lie one after the other in a row. Storage of z is
/// `storage`; everything else is of its accumulator type. No result depends on `num_threads`.
#pragma once

#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

/// top and total have num_heads columns, out has num_heads * head_width.
struct AttentionState {
  void* top;
  void* total;
  void* out;
};

/// Shape of the states of `num_rows` rows.
struct StateShape {
  std::int64_t num_rows;
  std::int64_t num_heads;
  std::int64_t head_width;
};

/// Merge row i of `other` into row rows[i], or i, of `state`, for all rows of `shape`.
/// @pre rows do not repeat.
template <class T>
void merge_states(const AttentionState& state, const AttentionState& other,
                  const std::int32_t* rows, const StateShape& shape, int num_threads);

/// Rows that are `pitch` elements apart, such as columns of a wider matrix.
template <class T>
struct Rows {
  T* data;
  std::int64_t pitch;
};

/// into = out / total + bias, or the bias alone for rows without edges; top becomes
/// log(sum of exp(e)), or -inf. `into` may be out itself; null = no bias.
template <class T>
void finish_states(const AttentionState& state, const StateShape& shape, Rows<T> into,
                   const T* bias, int num_threads);

/// delta = <grad, out - bias> of each row and head; null = no bias. Rows of grad are also copied to
/// `copy`, without padding; null = no copy.
template <class T>
void inner_products_of_heads(Rows<const T> grad, Rows<const T> out, const T* bias,
                             const StateShape& shape, T* delta, T* copy, int num_threads);

/// source = <z, weights> of each row and head, `weights` being one row; T is the accumulator of X.
template <class T, class X>
void scores_of_heads(const X* z, const T* weights, const StateShape& shape, T* source,
                     int num_threads);

/// Dropout of edges as a function of ids: the same in every block, pass and thread.
struct EdgeDropout {
  std::uint64_t key;
  double p;  ///< in [0, 1]; 0 = none
};

/// The operands that the forward and backward passes of a block share.
struct AttentionBlock {
  const std::int64_t* indptr;
  const std::int32_t* indices;
  const std::int32_t* rows;        ///< row of the state of each row of the block; null = identity
  const std::int64_t* row_ids;     ///< name of each row of the block; null without dropout
  const std::int64_t* column_ids;  ///< name of each column of the block; null without dropout
  const void* values;  ///< z, num_columns by num_heads * head_width; twice that, see `keyed`
  /// Additive scores: num_columns by num_heads. Dynamic ones: the vector, num_heads by head_width.
  /// Products: null.
  const void* source;
  /// num_targets by num_heads, or, for dynamic scores, as wide as the values.
  const void* target;
  /// Of additive scores, num_nonzeros by num_heads in the order of `indices`; null = none.
  const void* edges;
  /// Each head of `values` has first a key, which the score reads, and then z: always for products,
  /// and for dynamic scores if the key of an edge is not its value.
  bool keyed;
  /// No task begins inside a row (or column, of a transpose): a row's sum depends neither on other
  /// rows nor on its position among them. `dvector` then has a row for each row of the block.
  bool whole_lines;
  std::int64_t num_rows;
  std::int64_t num_columns;
  std::int64_t num_nonzeros;
  std::int64_t num_targets;  ///< rows of the state
  std::int64_t num_heads;
  std::int64_t head_width;
  EdgeDropout weight_dropout;  ///< of alpha, for each head; survivors are scaled by 1 / (1 - p)
  EdgeDropout edge_dropout;    ///< of edges, before the softmax
  double slope;
  Storage storage;
  int num_threads;  ///< 0 = OpenMP default
  Isa isa;
};

/// Add the edges of a block to the state of its rows. The indices of row i are columns. Rows are
/// cut into pieces of a fixed number of edges: results do not depend on `num_threads`.
void additive_forward(const AttentionBlock& block, const AttentionState& state);

/// Sums whose order does not matter, in place of gradients of columns. An edge's term, scaled by a
/// power of two for each column, is rounded to `digits` integers, each nearest to the rest that the
/// one before it leaves, times 2^bits. `sums` has all `width` columns of one digit before the next.
/// For blocks with `whole_lines` and values that are not narrow.
struct AttentionSums {
  double* sums;  ///< null = none
  const double* scale;
  std::int64_t width;
  int digits;
  int bits;
};

/// Operands of the backward pass, each as tall as the state or the columns.
struct AdditiveGradients {
  const void* lse;    ///< what attention_finish left in top
  const void* grad;   ///< gradient of the finished out
  const void* delta;  ///< <grad, out> of each row and head
  void* dz;           ///< null = not wanted; `weights` is then null, too
  void* dsource;
  void* dtarget;
  /// Where source = <weights, z>, num_heads by head_width, the gradient of source also adds to dz
  /// and dweights; null = source is a separate operand.
  const void* weights;
  void* dweights;
  void* dedges;           ///< gradient of `edges`, overwritten, where the block has them
  AttentionSums rounded;  ///< for z and, in the last columns, for source; dz is then null
};

/// Add the gradients of z, source and target. `indptr` and `indices` are those of the *transpose*:
/// num_columns + 1 offsets of rows of the block. In this order a column's z stays in cache, and one
/// row of `grad` is read for each edge and head, for both <grad, z> and the gradient of z: a third
/// of the bytes of a walk over rows. Results do not depend on `num_threads`.
void additive_backward(const AttentionBlock& block, const AdditiveGradients& gradients);

/// Add the edges of a block, of dynamic scores or keyed, to the state of its rows. The indices of
/// row i are columns.
void dynamic_forward(const AttentionBlock& block, const AttentionState& state);

/// Operands of the backward passes; see AdditiveGradients.
struct DynamicGradients {
  const void* lse;
  const void* grad;
  const void* delta;
  void* dz;               ///< of the pass over columns
  void* dtarget;          ///< of the pass over rows, like dvector
  void* dvector;          ///< null for products; see also `whole_lines`
  AttentionSums rounded;  ///< in place of dz
};

/// Add the gradients of target and vector. `indptr` and `indices` are those of the forward pass.
void dynamic_backward_rows(const AttentionBlock& block, const DynamicGradients& gradients);

/// Add the gradient of z. `indptr` and `indices` are those of the transpose.
void dynamic_backward_columns(const AttentionBlock& block, const DynamicGradients& gradients);

}  // namespace hpcgnn::kernels
