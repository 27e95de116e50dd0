/// What the kernels of GATv2 share: logits <vector, L(target + z)> of a head over a tile.
#pragma once

#include "attention.cuh"

namespace hpcgnn {

/// The operands of a logit and of <grad, z>, one edge: columns of a window in registers, and where
/// the whole rows of the head are. `grad` may be null.
template <class X, int V, int K>
struct HeadPair {
  using T = Accumulator<X>;
  T target[K][V], z[K][V], grad[K][V];
  const T *target_row, *grad_row;
  const X* z_row;
};

/// A window of columns of one head, with the vector that weighs them.
template <class X, int V, int K>
struct HeadWindow {
  using T = Accumulator<X>;
  int64 base, width;
  T slope;
  const T* vector_row;
  T vector[K][V];

  HPCGNN_DEVICE int64 span(const Tile& tile) const {
    return static_cast<int64>(tile.lanes) * V * K;
  }
  template <class Y>
  HPCGNN_DEVICE void read(const Tile& tile, const Y* from, T (&to)[K][V]) const {
    read_columns<V, K>(tile, base, width, from, to);
  }

  /// The logit, and with kDot <grad, z>, on every thread of the tile.
  template <bool kDot>
  HPCGNN_DEVICE T logit(const Tile& tile, const HeadPair<X, V, K>& pair, T& dot) const {
    T sum = 0;
    dot = 0;
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int v = 0; v < V; ++v) {
        sum += vector[k][v] * rectified(pair.target[k][v] + pair.z[k][v], slope);
        if constexpr (kDot) dot += pair.grad[k][v] * pair.z[k][v];
      }
    if (width > span(tile)) {
      for (int64 column = tile.lane; column < width; column += tile.lanes) {
        if (column >= base && column < base + span(tile)) continue;
        const T z = widen(pair.z_row[column]);
        sum += vector_row[column] * rectified(pair.target_row[column] + z, slope);
        if constexpr (kDot) dot += pair.grad_row[column] * z;
      }
    }
    if constexpr (kDot) dot = sum_of_tile(tile, dot);
    return sum_of_tile(tile, sum);
  }
};

}  // namespace hpcgnn
