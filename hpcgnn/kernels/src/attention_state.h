/// The running state of a softmax: what edges seen so far have added up to.
///
/// For each row and head: `top`, the largest logit e; `total`, the sum of exp(e - top); `out`, the
/// sum of exp(e - top) z. States of any two sets of edges merge exactly, so blocks, peers and
/// replicas may come in any order (SAR paper, section 3.4). A state with top = -inf holds no edge;
/// its `out` is never read.
#pragma once

#include <cstdint>

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

/// Rows that lie `pitch` elements apart, as columns of a wider matrix do.
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

/// delta = <grad, out - bias> of each row and head; null = no bias. Rows of grad are written to
/// `copy` on the way, without padding; null = nowhere.
template <class T>
void inner_products_of_heads(Rows<const T> grad, Rows<const T> out, const T* bias,
                             const StateShape& shape, T* delta, T* copy, int num_threads);

/// source = <z, weights> of each row and head, `weights` being one row; T is the accumulator of X.
template <class T, class X>
void scores_of_heads(const X* z, const T* weights, const StateShape& shape, T* source,
                     int num_threads);

}  // namespace hpcgnn::kernels
