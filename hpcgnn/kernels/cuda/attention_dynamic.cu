/// Fused attention with dynamic scores (GATv2): the logit is <vector[h], L(target[r, h] + z[j,
/// h])>, with the row r of the state and the leaky rectifier L of whole rows.
///
/// Forward, the rows of z of a batch of edges are read for the logits and again, from a cache, for
/// the sums. Backward is one walk by rows for target and vector, and one by columns for z: a tile
/// takes edges of one row (or column) and one head, one edge after the other; every thread has the
/// logit of the edge and its gradient, and holds some columns.
#include "attention.cuh"

namespace hpcgnn {

struct DynamicBackward {
  AttentionBlock block;  ///< of the transpose in the walk by columns
  SoftmaxGradient saved;
  void* gradient;  ///< of target or of z, and of its shape; added to
  void* dvector;   ///< (num_heads, head_width), added to; in the walk by rows
  int64 chunk;     ///< groups whose gradient of the vector one tile sums before it adds
};

/// The operands of a logit and of <grad, z> of an edge: the columns of a window in registers, and
/// pointers to the whole rows of the head. `grad` may be null.
template <class X, int V, int K>
struct Pair {
  using T = Accumulator<X>;
  T target[K][V], z[K][V], grad[K][V];
  const T *target_row, *grad_row;
  const X* z_row;
};

/// A window of columns of one head, with the vector that weighs them.
template <class X, int V, int K>
struct Window : Columns<V, K> {
  using T = Accumulator<X>;
  T slope;
  const T* vector_row;
  T vector[K][V];

  /// The logit, and with kDot <grad, z>, on every thread of the tile.
  template <bool kDot>
  HPCGNN_DEVICE T logit(const Tile& tile, const Pair<X, V, K>& pair, T& dot) const {
    T sum = 0;
    dot = 0;
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int v = 0; v < V; ++v) {
        sum += vector[k][v] * rectified(pair.target[k][v] + pair.z[k][v], slope);
        if constexpr (kDot) dot += pair.grad[k][v] * pair.z[k][v];
      }
    this->outside(tile, [&](int64 column) {
      const T z = widen(pair.z_row[column]);
      sum += vector_row[column] * rectified(pair.target_row[column] + z, slope);
      if constexpr (kDot) dot += pair.grad_row[column] * z;
    });
    if constexpr (kDot) dot = sum_of_tile(tile, dot);
    return sum_of_tile(tile, sum);
  }
};

/// The tile computes the logits of a batch one after the other; each thread keeps its own edge's.
template <class X, int V, int K>
struct DynamicLogits {
  using T = Accumulator<X>;
  const AttentionBlock& b;
  int64 offset = 0;
  Window<X, V, K> window{};
  Pair<X, V, K> pair{};

  HPCGNN_DEVICE void begin(const Tile& tile, int64 row, int64 head) {
    offset = head * b.head_width;
    window.base = 0, window.width = b.head_width, window.slope = static_cast<T>(b.slope);
    window.vector_row = static_cast<const T*>(b.source) + offset;
    pair.target_row = static_cast<const T*>(b.target) + row * b.num_heads * b.head_width + offset;
    window.read(tile, window.vector_row, window.vector);
    window.read(tile, pair.target_row, pair.target);
  }
  HPCGNN_DEVICE T operator()(const Tile& tile, int64 column, int count) {
    T mine = 0, unused;
    for (int k = 0; k < count; ++k) {
      const int64 start = shuffle(tile, column, k) * b.num_heads * b.head_width + offset;
      pair.z_row = static_cast<const X*>(b.z) + start;
      window.read(tile, pair.z_row, pair.z);
      const T logit = window.template logit<false>(tile, pair, unused);
      if (tile.lane == k) mine = logit;
    }
    return mine;
  }
};

template <class X, int V, int K>
HPCGNN_DEVICE void dynamic_forward(const ForwardArguments& a) {
  attend<X, V, K>(a, DynamicLogits<X, V, K>{a.block});
}

/// The gradient of an edge's logit; the factor of grad in the gradient of z goes to `weight`.
template <class X, int V, int K>
HPCGNN_DEVICE Accumulator<X> logit_gradient(const Tile& tile, const Window<X, V, K>& window,
                                            const Pair<X, V, K>& pair,
                                            const Edge<Accumulator<X>>& edge, int k,
                                            Accumulator<X>& weight) {
  using T = Accumulator<X>;
  T dot;
  const T logit = window.template logit<true>(tile, pair, dot);
  const T alpha = share_of(logit, shuffle(tile, edge.lse, k));
  const T kept = shuffle(tile, edge.kept, k);
  weight = alpha * kept;
  return alpha * (kept * dot - shuffle(tile, edge.delta, k));
}

/// Add the gradients of the edges of a group of a row to `dtarget` and, summed up, to `dvector`.
template <class X, int V, int K>
HPCGNN_DEVICE void walk_row(const DynamicBackward& a, const Tile& tile, int64 g, int64 head,
                            const Window<X, V, K>& window, Accumulator<X> (&dvector)[K][V]) {
  using T = Accumulator<X>;
  const AttentionBlock& b = a.block;
  const int64 pitch = b.num_heads * b.head_width, offset = head * b.head_width;
  const int64 row = b.groups.row[g], at = state_row(b, row), stop = b.groups.stop[g];
  Pair<X, V, K> pair{};
  pair.target_row = static_cast<const T*>(b.target) + at * pitch + offset;
  pair.grad_row = static_cast<const T*>(a.saved.grad) + at * pitch + offset;
  window.read(tile, pair.target_row, pair.target);
  window.read(tile, pair.grad_row, pair.grad);
  T dtarget[K][V] = {};
  for (int64 first = b.groups.start[g]; first < stop; first += tile.lanes) {
    Edge<T> edge{0, 0, 0, 0};
    if (first + tile.lane < stop) {
      const int64 column = b.indices[first + tile.lane];
      edge = edge_of<T>(b, a.saved, row, at, column, head, column);
    }
    const int count = stop - first < tile.lanes ? static_cast<int>(stop - first) : tile.lanes;
    for (int k = 0; k < count; ++k) {
      pair.z_row = static_cast<const X*>(b.z) + shuffle(tile, edge.other, k) * pitch + offset;
      window.read(tile, pair.z_row, pair.z);
      T unused;
      const T dlogit = logit_gradient(tile, window, pair, edge, k, unused);
#pragma unroll
      for (int q = 0; q < K; ++q)
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const T x = pair.target[q][v] + pair.z[q][v];
          const T share = x > 0 ? dlogit : dlogit * window.slope;
          dtarget[q][v] += share * window.vector[q][v];
          dvector[q][v] += share * x;
        }
    }
  }
  const bool alone = b.groups.piece[g] < 0;
  window.add_to(tile, dtarget, static_cast<T*>(a.gradient) + at * pitch + offset, alone);
}

template <class X, int V, int K>
HPCGNN_DEVICE Window<X, V, K> first_window(const AttentionBlock& b, int64 head) {
  using T = Accumulator<X>;
  Window<X, V, K> window{};
  window.width = b.head_width, window.slope = static_cast<T>(b.slope);
  window.vector_row = static_cast<const T*>(b.source) + head * b.head_width;
  return window;
}

template <class X, int V, int K>
HPCGNN_DEVICE void dynamic_rows(const DynamicBackward& a) {
  using T = Accumulator<X>;
  const AttentionBlock& b = a.block;
  const Tile tile = make_tile(b.lanes);
  const int64 groups = b.groups.num_groups, chunks = (groups + a.chunk - 1) / a.chunk;
  for (int64 item = tile.first; item < chunks * b.num_heads; item += tile.count) {
    const int64 head = item % b.num_heads, first = item / b.num_heads * a.chunk;
    const int64 last = first + a.chunk < groups ? first + a.chunk : groups;
    Window<X, V, K> window = first_window<X, V, K>(b, head);
    for (; window.base < b.head_width; window.base += window.span(tile)) {
      window.read(tile, window.vector_row, window.vector);
      T dvector[K][V] = {};
      for (int64 g = first; g < last; ++g) walk_row(a, tile, g, head, window, dvector);
      T* const into = static_cast<T*>(a.dvector) + head * b.head_width;
      window.add_to(tile, dvector, into, false);
    }
  }
}

/// Add the gradients of the edges of a group of column j to that of z[j].
template <class X, int V, int K>
HPCGNN_DEVICE void walk_column(const DynamicBackward& a, const Tile& tile, int64 g, int64 head,
                               const Window<X, V, K>& window) {
  using T = Accumulator<X>;
  const AttentionBlock& b = a.block;
  const int64 pitch = b.num_heads * b.head_width, offset = head * b.head_width;
  const int64 j = b.groups.row[g], stop = b.groups.stop[g];
  Pair<X, V, K> pair{};
  pair.z_row = static_cast<const X*>(b.z) + j * pitch + offset;
  window.read(tile, pair.z_row, pair.z);
  T dz[K][V] = {};
  for (int64 first = b.groups.start[g]; first < stop; first += tile.lanes) {
    Edge<T> edge{0, 0, 0, 0};
    if (first + tile.lane < stop) {
      const int64 row = b.indices[first + tile.lane], at = state_row(b, row);
      edge = edge_of<T>(b, a.saved, row, at, j, head, at);
    }
    const int count = stop - first < tile.lanes ? static_cast<int>(stop - first) : tile.lanes;
    for (int k = 0; k < count; ++k) {
      const int64 start = shuffle(tile, edge.other, k) * pitch + offset;
      pair.target_row = static_cast<const T*>(b.target) + start;
      pair.grad_row = static_cast<const T*>(a.saved.grad) + start;
      window.read(tile, pair.target_row, pair.target);
      window.read(tile, pair.grad_row, pair.grad);
      T weight;
      const T dlogit = logit_gradient(tile, window, pair, edge, k, weight);
#pragma unroll
      for (int q = 0; q < K; ++q)
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const T x = pair.target[q][v] + pair.z[q][v];
          const T share = x > 0 ? dlogit : dlogit * window.slope;
          dz[q][v] += weight * pair.grad[q][v] + share * window.vector[q][v];
        }
    }
  }
  const bool alone = b.groups.piece[g] < 0;
  window.add_to(tile, dz, static_cast<T*>(a.gradient) + j * pitch + offset, alone);
}

template <class X, int V, int K>
HPCGNN_DEVICE void dynamic_columns(const DynamicBackward& a) {
  const AttentionBlock& b = a.block;
  const Tile tile = make_tile(b.lanes);
  const int64 items = b.groups.num_groups * b.num_heads;
  for (int64 item = tile.first; item < items; item += tile.count) {
    const int64 g = item / b.num_heads, head = item % b.num_heads;
    Window<X, V, K> window = first_window<X, V, K>(b, head);
    for (; window.base < b.head_width; window.base += window.span(tile)) {
      window.read(tile, window.vector_row, window.vector);
      walk_column(a, tile, g, head, window);
    }
  }
}

}  // namespace hpcgnn

using namespace hpcgnn;

#define HPCGNN_DYNAMIC(x, X, v, k)                                                             \
  HPCGNN_KERNEL(dynamic_forward_##x##_v##v##_k##k, ForwardArguments, dynamic_forward<X, v, k>) \
  HPCGNN_KERNEL(dynamic_rows_##x##_v##v##_k##k, DynamicBackward, dynamic_rows<X, v, k>)        \
  HPCGNN_KERNEL(dynamic_columns_##x##_v##v##_k##k, DynamicBackward, dynamic_columns<X, v, k>)

HPCGNN_ATTENTION_SHAPES(HPCGNN_DYNAMIC, 4)
