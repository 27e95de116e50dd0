/// Fused attention, backward: both passes, through the softmax and to z, on one walk over edges.
///
/// The pattern is the transpose: a tile takes a group of edges of one column j and one head, with
/// z[j] in registers. Its threads hold an edge each, for alpha and the gradient of the logit, and
/// in between columns of grad: a row of grad is read once for both <grad, z> and the gradient of z.
/// Gradients of target, and of columns of several groups, are added atomically.
#include "attention.cuh"

namespace hpcgnn {

struct AttentionBackward {
  AttentionBlock block;
  const void* lse;      ///< (num_targets, num_heads)
  const void* grad;     ///< (num_targets, num_heads * head_width)
  const void* delta;    ///< (num_targets, num_heads)
  const void* weights;  ///< (num_heads, head_width) of source = <weights, z>; null = none
  void* dz;             ///< (num_columns, num_heads * head_width), added to
  void* dsource;        ///< (num_columns, num_heads), added to
  void* dtarget;        ///< (num_targets, num_heads), added to
};

/// What a thread knows of its edge.
template <class T>
struct Edge {
  int64 at;  ///< row of the state
  T alpha, kept, delta, slope;
};

template <class T>
HPCGNN_DEVICE Edge<T> edge_of(const AttentionBackward& a, int64 row, int64 column, int64 head,
                              T source) {
  const AttentionBlock& b = a.block;
  const int64 at = state_row(b, row), place = at * b.num_heads + head;
  const T sum = static_cast<const T*>(b.target)[place] + source, slope = static_cast<T>(b.slope);
  T lse = static_cast<const T*>(a.lse)[place];
  // All edges of such a row were dropped: exp(e - inf) is 0, where exp(e + inf) is not.
  if (lse == -infinity<T>() || dropped(b, b.edges, row, column, 0)) lse = infinity<T>();
  return {at, exponential(rectified(sum, slope) - lse), kept_share<T>(b, row, column, head),
          static_cast<const T*>(a.delta)[place], sum > 0 ? T(1) : slope};
}

/// Columns [base, base + lanes * V * K) of a head: z, the gradient of z, and rows of grad.
template <class X, int V, int K>
struct Window {
  using T = Accumulator<X>;
  // Rows of grad that are under way at once, as registers allow.
  static constexpr int kAhead = 32 / (V * K) < 1 ? 1 : 32 / (V * K) > 4 ? 4 : 32 / (V * K);

  int64 base, width;
  T z[K][V], dz[K][V];

  HPCGNN_DEVICE int64 column(const Tile& tile, int k) const {
    return base + static_cast<int64>(k * tile.lanes + tile.lane) * V;
  }
  template <class Y>
  HPCGNN_DEVICE void read(const Tile& tile, const Y* from, T (&to)[K][V]) const {
    read_columns<V, K>(tile, base, width, from, to);
  }
  HPCGNN_DEVICE T inner_product(const T (&grad)[K][V]) const {
    T sum = 0;
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int v = 0; v < V; ++v) sum += z[k][v] * grad[k][v];
    return sum;
  }
  HPCGNN_DEVICE void gain(T factor, const T (&from)[K][V]) {
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int v = 0; v < V; ++v) dz[k][v] += factor * from[k][v];
  }
};

/// The thread's share of <grad, z> over columns outside a window.
template <class X, int V, int K>
HPCGNN_DEVICE Accumulator<X> outside(const Tile& tile, const Window<X, V, K>& window, const X* z,
                                     const Accumulator<X>* grad) {
  Accumulator<X> sum = 0;
  const int64 span = static_cast<int64>(tile.lanes) * V * K;
  for (int64 column = tile.lane; column < window.width; column += tile.lanes)
    if (column < window.base || column >= window.base + span)
      sum += widen(z[column]) * grad[column];
  return sum;
}

/// One walk over the edges [start, stop) of column j for the columns of a window; returns the
/// thread's share of the gradient of source. Only the first walk gives gradients to target.
template <class X, int V, int K>
HPCGNN_DEVICE Accumulator<X> walk(const AttentionBackward& a, const Tile& tile, int64 start,
                                  int64 stop, int64 j, int64 head, Window<X, V, K>& window) {
  using T = Accumulator<X>;
  const AttentionBlock& b = a.block;
  const int64 pitch = b.num_heads * b.head_width, offset = head * b.head_width;
  const X* const z = static_cast<const X*>(b.z) + j * pitch + offset;
  const T* const grads = static_cast<const T*>(a.grad) + offset;
  const T source = static_cast<const T*>(b.source)[j * b.num_heads + head];
  const bool whole = b.head_width <= static_cast<int64>(tile.lanes) * V * K;
  T gained = 0;
  for (int64 first = start; first < stop; first += tile.lanes) {
    const bool mine = first + tile.lane < stop;
    Edge<T> edge{0, 0, 0, 0, 0};
    if (mine) edge = edge_of<T>(a, b.indices[first + tile.lane], j, head, source);
    const T weight = edge.alpha * edge.kept;
    const int count = stop - first < tile.lanes ? static_cast<int>(stop - first) : tile.lanes;
    T dot = 0;
    for (int k = 0; k < count; k += Window<X, V, K>::kAhead) {
      T rows[Window<X, V, K>::kAhead][K][V];
      const T* from[Window<X, V, K>::kAhead];
#pragma unroll
      for (int u = 0; u < Window<X, V, K>::kAhead; ++u) {
        // Beyond the last edge its row is read again, with weight 0 below.
        from[u] = grads + shuffle(tile, edge.at, k + u < count ? k + u : count - 1) * pitch;
        window.read(tile, from[u], rows[u]);
      }
#pragma unroll
      for (int u = 0; u < Window<X, V, K>::kAhead; ++u) {
        T share = window.inner_product(rows[u]);
        if (!whole) share += outside(tile, window, z, from[u]);
        share = sum_of_tile(tile, share);
        if (tile.lane == k + u) dot = share;
        const T factor = shuffle(tile, weight, k + u < count ? k + u : count - 1);
        if (k + u < count) window.gain(factor, rows[u]);
      }
    }
    const T dlogit = edge.alpha * (edge.kept * dot - edge.delta) * edge.slope;
    gained += mine ? dlogit : T(0);
    if (mine && window.base == 0)
      atomicAdd(static_cast<T*>(a.dtarget) + edge.at * b.num_heads + head, dlogit);
  }
  return gained;
}

template <class X, int V, int K>
HPCGNN_DEVICE void attention_backward(const AttentionBackward& a) {
  using T = Accumulator<X>;
  const AttentionBlock& b = a.block;
  const Tile tile = make_tile(b.lanes);
  const int64 items = b.groups.num_groups * b.num_heads;
  for (int64 item = tile.first; item < items; item += tile.count) {
    const int64 g = item / b.num_heads, head = item % b.num_heads, j = b.groups.row[g];
    const bool alone = b.groups.piece[g] < 0;
    const int64 at = j * b.num_heads + head, begin = at * b.head_width;
    Window<X, V, K> window{0, b.head_width, {}, {}};
    do {
      window.read(tile, static_cast<const X*>(b.z) + begin, window.z);
#pragma unroll
      for (int k = 0; k < K; ++k)
#pragma unroll
        for (int v = 0; v < V; ++v) window.dz[k][v] = 0;
      const T share = walk(a, tile, b.groups.start[g], b.groups.stop[g], j, head, window);
      const T gained = sum_of_tile(tile, share);
      if (window.base == 0 && tile.lane == 0)
        gain_at(static_cast<T*>(a.dsource) + at, gained, alone);
      if (a.weights != nullptr) {
        T weights[K][V];
        window.read(tile, static_cast<const T*>(a.weights) + head * b.head_width, weights);
        window.gain(gained, weights);
      }
#pragma unroll
      for (int k = 0; k < K; ++k) {
        T* const dz = static_cast<T*>(a.dz) + begin + window.column(tile, k);
#pragma unroll
        for (int v = 0; v < V; ++v)
          if (window.column(tile, k) < b.head_width) gain_at(dz + v, window.dz[k][v], alone);
      }
      window.base += static_cast<int64>(tile.lanes) * V * K;
    } while (window.base < b.head_width);
  }
}

}  // namespace hpcgnn

using namespace hpcgnn;

#define HPCGNN_BACKWARD(x, X, v, k)                                      \
  HPCGNN_KERNEL(attention_backward_##x##_v##v##_k##k, AttentionBackward, \
                attention_backward<X, v, k>)

HPCGNN_BACKWARD(f32, float, 4, 1)
HPCGNN_BACKWARD(f32, float, 4, 2)
HPCGNN_BACKWARD(f32, float, 1, 1)
HPCGNN_BACKWARD(f32, float, 1, 2)
HPCGNN_BACKWARD(f64, double, 2, 1)
HPCGNN_BACKWARD(f64, double, 2, 2)
HPCGNN_BACKWARD(f64, double, 1, 1)
HPCGNN_BACKWARD(f64, double, 1, 2)
HPCGNN_BACKWARD(bf16, BFloat16, 8, 1)
HPCGNN_BACKWARD(bf16, BFloat16, 8, 2)
HPCGNN_BACKWARD(bf16, BFloat16, 1, 1)
HPCGNN_BACKWARD(bf16, BFloat16, 1, 2)
HPCGNN_BACKWARD(f16, Float16, 8, 1)
HPCGNN_BACKWARD(f16, Float16, 8, 2)
HPCGNN_BACKWARD(f16, Float16, 1, 1)
HPCGNN_BACKWARD(f16, Float16, 1, 2)
