/// Fused attention of GATv2, backward: one walk by rows for target and vector, one by columns for
/// z.
///
/// A tile takes edges of one row (or column) and one head, an edge after the other; every thread
/// knows the logit of the edge and its gradient, and holds columns.
#include "attention_v2.cuh"

namespace hpcgnn {

struct AttentionV2Backward {
  AttentionBlock block;  ///< source: the vector; of the transpose in the walk by columns
  const void* lse;       ///< (num_targets, num_heads)
  const void* grad;      ///< (num_targets, num_heads * head_width)
  const void* delta;     ///< (num_targets, num_heads)
  void* gradient;        ///< of target, or of z, which it is as large as; added to
  void* dvector;         ///< (num_heads, head_width), added to; in the walk by rows
  int64 chunk;           ///< groups whose gradient of the vector one tile sums before it adds
};

/// What a thread knows of its edge.
template <class T>
struct V2Edge {
  int64 other;  ///< column of z, or row of the state
  T lse, delta, kept;
};

template <class T>
HPCGNN_DEVICE V2Edge<T> v2_edge(const AttentionV2Backward& a, int64 row, int64 at, int64 column,
                                int64 head, int64 other) {
  const AttentionBlock& b = a.block;
  const int64 place = at * b.num_heads + head;
  T lse = static_cast<const T*>(a.lse)[place];
  // All edges of such a row were dropped: exp(e - inf) is 0, where exp(e + inf) is not.
  if (lse == -infinity<T>() || dropped(b, b.edges, row, column, 0)) lse = infinity<T>();
  return {other, lse, static_cast<const T*>(a.delta)[place], kept_share<T>(b, row, column, head)};
}

/// The gradient of an edge's logit; what z gains of grad goes to `weight`.
template <class X, int V, int K>
HPCGNN_DEVICE Accumulator<X> logit_gradient(const Tile& tile, const HeadWindow<X, V, K>& window,
                                            const HeadPair<X, V, K>& pair,
                                            const V2Edge<Accumulator<X>>& edge, int k,
                                            Accumulator<X>& weight) {
  using T = Accumulator<X>;
  T dot;
  const T logit = window.template logit<true>(tile, pair, dot);
  const T alpha = exponential(logit - shuffle(tile, edge.lse, k));
  const T kept = shuffle(tile, edge.kept, k);
  weight = alpha * kept;
  return alpha * (kept * dot - shuffle(tile, edge.delta, k));
}

/// The edges of a group of a row give to `dtarget` and, all together, to `dvector`.
template <class X, int V, int K>
HPCGNN_DEVICE void walk_row(const AttentionV2Backward& a, const Tile& tile, int64 g, int64 head,
                            const HeadWindow<X, V, K>& window, Accumulator<X> (&dvector)[K][V]) {
  using T = Accumulator<X>;
  const AttentionBlock& b = a.block;
  const int64 pitch = b.num_heads * b.head_width, offset = head * b.head_width;
  const int64 row = b.groups.row[g], at = state_row(b, row), stop = b.groups.stop[g];
  HeadPair<X, V, K> pair{};
  pair.target_row = static_cast<const T*>(b.target) + at * pitch + offset;
  pair.grad_row = static_cast<const T*>(a.grad) + at * pitch + offset;
  window.read(tile, pair.target_row, pair.target);
  window.read(tile, pair.grad_row, pair.grad);
  T dtarget[K][V] = {};
  for (int64 first = b.groups.start[g]; first < stop; first += tile.lanes) {
    V2Edge<T> edge{0, 0, 0, 0};
    if (first + tile.lane < stop) {
      const int64 column = b.indices[first + tile.lane];
      edge = v2_edge<T>(a, row, at, column, head, column);
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
  for_columns<V, K>(tile, window.base, b.head_width, [&](int q, int v, int64 column) {
    gain_at(static_cast<T*>(a.gradient) + at * pitch + offset + column, dtarget[q][v], alone);
  });
}

template <class X, int V, int K>
HPCGNN_DEVICE HeadWindow<X, V, K> first_window(const AttentionBlock& b, int64 head) {
  using T = Accumulator<X>;
  HeadWindow<X, V, K> window{};
  window.width = b.head_width, window.slope = static_cast<T>(b.slope);
  window.vector_row = static_cast<const T*>(b.source) + head * b.head_width;
  return window;
}

template <class X, int V, int K>
HPCGNN_DEVICE void backward_rows(const AttentionV2Backward& a) {
  using T = Accumulator<X>;
  const AttentionBlock& b = a.block;
  const Tile tile = make_tile(b.lanes);
  const int64 groups = b.groups.num_groups, chunks = (groups + a.chunk - 1) / a.chunk;
  for (int64 item = tile.first; item < chunks * b.num_heads; item += tile.count) {
    const int64 head = item % b.num_heads, first = item / b.num_heads * a.chunk;
    const int64 last = first + a.chunk < groups ? first + a.chunk : groups;
    HeadWindow<X, V, K> window = first_window<X, V, K>(b, head);
    for (; window.base < b.head_width; window.base += window.span(tile)) {
      window.read(tile, window.vector_row, window.vector);
      T dvector[K][V] = {};
      for (int64 g = first; g < last; ++g) walk_row(a, tile, g, head, window, dvector);
      for_columns<V, K>(tile, window.base, b.head_width, [&](int q, int v, int64 column) {
        atomicAdd(static_cast<T*>(a.dvector) + head * b.head_width + column, dvector[q][v]);
      });
    }
  }
}

/// The edges of a group of column j give to z[j].
template <class X, int V, int K>
HPCGNN_DEVICE void walk_column(const AttentionV2Backward& a, const Tile& tile, int64 g, int64 head,
                               const HeadWindow<X, V, K>& window) {
  using T = Accumulator<X>;
  const AttentionBlock& b = a.block;
  const int64 pitch = b.num_heads * b.head_width, offset = head * b.head_width;
  const int64 j = b.groups.row[g], stop = b.groups.stop[g];
  HeadPair<X, V, K> pair{};
  pair.z_row = static_cast<const X*>(b.z) + j * pitch + offset;
  window.read(tile, pair.z_row, pair.z);
  T dz[K][V] = {};
  for (int64 first = b.groups.start[g]; first < stop; first += tile.lanes) {
    V2Edge<T> edge{0, 0, 0, 0};
    if (first + tile.lane < stop) {
      const int64 row = b.indices[first + tile.lane], at = state_row(b, row);
      edge = v2_edge<T>(a, row, at, j, head, at);
    }
    const int count = stop - first < tile.lanes ? static_cast<int>(stop - first) : tile.lanes;
    for (int k = 0; k < count; ++k) {
      const int64 start = shuffle(tile, edge.other, k) * pitch + offset;
      pair.target_row = static_cast<const T*>(b.target) + start;
      pair.grad_row = static_cast<const T*>(a.grad) + start;
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
  for_columns<V, K>(tile, window.base, b.head_width, [&](int q, int v, int64 column) {
    gain_at(static_cast<T*>(a.gradient) + j * pitch + offset + column, dz[q][v], alone);
  });
}

template <class X, int V, int K>
HPCGNN_DEVICE void backward_columns(const AttentionV2Backward& a) {
  const AttentionBlock& b = a.block;
  const Tile tile = make_tile(b.lanes);
  const int64 items = b.groups.num_groups * b.num_heads;
  for (int64 item = tile.first; item < items; item += tile.count) {
    const int64 g = item / b.num_heads, head = item % b.num_heads;
    HeadWindow<X, V, K> window = first_window<X, V, K>(b, head);
    for (; window.base < b.head_width; window.base += window.span(tile)) {
      window.read(tile, window.vector_row, window.vector);
      walk_column(a, tile, g, head, window);
    }
  }
}

}  // namespace hpcgnn

using namespace hpcgnn;

#define HPCGNN_BACKWARD(x, X, v, k)                                                               \
  HPCGNN_KERNEL(attention_v2_rows_##x##_v##v##_k##k, AttentionV2Backward, backward_rows<X, v, k>) \
  HPCGNN_KERNEL(attention_v2_columns_##x##_v##v##_k##k, AttentionV2Backward,                      \
                backward_columns<X, v, k>)

HPCGNN_BACKWARD(f32, float, 4, 1)
HPCGNN_BACKWARD(f32, float, 4, 2)
HPCGNN_BACKWARD(f32, float, 1, 1)
HPCGNN_BACKWARD(f32, float, 1, 2)
HPCGNN_BACKWARD(f64, double, 2, 1)
HPCGNN_BACKWARD(f64, double, 2, 2)
HPCGNN_BACKWARD(f64, double, 1, 1)
HPCGNN_BACKWARD(f64, double, 1, 2)
HPCGNN_BACKWARD(bf16, BFloat16, 4, 1)
HPCGNN_BACKWARD(bf16, BFloat16, 4, 2)
HPCGNN_BACKWARD(bf16, BFloat16, 1, 1)
HPCGNN_BACKWARD(bf16, BFloat16, 1, 2)
HPCGNN_BACKWARD(f16, Float16, 4, 1)
HPCGNN_BACKWARD(f16, Float16, 4, 2)
HPCGNN_BACKWARD(f16, Float16, 1, 1)
HPCGNN_BACKWARD(f16, Float16, 1, 2)
