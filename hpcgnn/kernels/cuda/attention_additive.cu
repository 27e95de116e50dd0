/// Fused attention with additive scores (GAT): the logit is L(target[r, h] + source[j, h]), with
/// the row r of the state and the leaky rectifier L.
///
/// Backward, one walk over the edges of the transpose gives the gradients through the softmax and
/// of z: a tile takes a group of edges of one column j and one head, with z[j] in registers. Each
/// thread holds an edge, for alpha and the gradient of the logit, and in between columns of grad: a
/// row of grad is read once for both <grad, z> and the gradient of z. Gradients of target, and of
/// columns of several groups, are added atomically.
// Measured on an H100: with twice the threads a layer takes 10 to 25 % less time, despite spills.
#define HPCGNN_BLOCKS 4
#include "attention.cuh"

namespace hpcgnn {

struct AdditiveBackward {
  AttentionBlock block;
  SoftmaxGradient saved;
  const void* weights;  ///< (num_heads, head_width) of source = <weights, z>; null = none
  void* dz;             ///< (num_columns, num_heads * head_width), added to
  void* dsource;        ///< (num_columns, num_heads), added to
  void* dtarget;        ///< (num_targets, num_heads), added to
};

/// L(target + source); each thread has that of its own edge.
template <class T>
struct AdditiveLogits {
  const AttentionBlock& b;
  int64 head = 0;
  T target = 0;

  HPCGNN_DEVICE void begin(const Tile&, int64 row, int64 of_head) {
    head = of_head;
    target = static_cast<const T*>(b.target)[row * b.num_heads + head];
  }
  HPCGNN_DEVICE T operator()(const Tile& tile, int64 column, int count) const {
    if (tile.lane >= count) return 0;
    const T source = static_cast<const T*>(b.source)[column * b.num_heads + head];
    return rectified(target + source, static_cast<T>(b.slope));
  }
};

template <class X, int V, int K>
HPCGNN_DEVICE void additive_forward(const ForwardArguments& a) {
  attend<X, V, K>(a, AdditiveLogits<Accumulator<X>>{a.block});
}

/// Columns [base, base + lanes * V * K) of a head: z, the gradient of z, and rows of grad.
template <class X, int V, int K>
struct Window : Columns<V, K> {
  using T = Accumulator<X>;
  // Rows of grad that are loaded at once, as registers allow.
  static constexpr int kAhead = 32 / (V * K) < 1 ? 1 : 32 / (V * K) > 4 ? 4 : 32 / (V * K);

  T z[K][V], dz[K][V];

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

/// One walk over the edges [start, stop) of column j for the columns of a window; returns the
/// thread's share of the gradient of source. Only the first walk gives gradients to target.
template <class X, int V, int K>
HPCGNN_DEVICE Accumulator<X> walk(const AdditiveBackward& a, const Tile& tile, int64 start,
                                  int64 stop, int64 j, int64 head, Window<X, V, K>& window) {
  using T = Accumulator<X>;
  const AttentionBlock& b = a.block;
  const int64 pitch = b.num_heads * b.head_width, offset = head * b.head_width;
  const X* const z = static_cast<const X*>(b.z) + j * pitch + offset;
  const T* const grads = static_cast<const T*>(a.saved.grad) + offset;
  const T source = static_cast<const T*>(b.source)[j * b.num_heads + head];
  const T slope = static_cast<T>(b.slope);
  T gained = 0;
  for (int64 first = start; first < stop; first += tile.lanes) {
    const bool mine = first + tile.lane < stop;
    Edge<T> edge{0, 0, 0, 0};
    T alpha = 0, steepness = 0;
    if (mine) {
      const int64 row = b.indices[first + tile.lane], at = state_row(b, row);
      edge = edge_of<T>(b, a.saved, row, at, j, head, at);
      const T sum = static_cast<const T*>(b.target)[at * b.num_heads + head] + source;
      alpha = share_of(rectified(sum, slope), edge.lse), steepness = sum > 0 ? T(1) : slope;
    }
    const T weight = alpha * edge.kept;
    const int count = stop - first < tile.lanes ? static_cast<int>(stop - first) : tile.lanes;
    T dot = 0;
    for (int k = 0; k < count; k += Window<X, V, K>::kAhead) {
      T rows[Window<X, V, K>::kAhead][K][V];
      const T* from[Window<X, V, K>::kAhead];
#pragma unroll
      for (int u = 0; u < Window<X, V, K>::kAhead; ++u) {
        // Beyond the last edge, its row is read again, with weight 0 below.
        from[u] = grads + shuffle(tile, edge.other, k + u < count ? k + u : count - 1) * pitch;
        window.read(tile, from[u], rows[u]);
      }
#pragma unroll
      for (int u = 0; u < Window<X, V, K>::kAhead; ++u) {
        T share = window.inner_product(rows[u]);
        T rest = 0;
        window.outside(tile, [&](int64 column) { rest += widen(z[column]) * from[u][column]; });
        share += rest;
        share = sum_of_tile(tile, share);
        if (tile.lane == k + u) dot = share;
        const T factor = shuffle(tile, weight, k + u < count ? k + u : count - 1);
        if (k + u < count) window.gain(factor, rows[u]);
      }
    }
    const T dlogit = alpha * (edge.kept * dot - edge.delta) * steepness;
    gained += mine ? dlogit : T(0);
    if (mine && window.base == 0)
      atomicAdd(static_cast<T*>(a.dtarget) + edge.other * b.num_heads + head, dlogit);
  }
  return gained;
}

template <class X, int V, int K>
HPCGNN_DEVICE void additive_backward(const AdditiveBackward& a) {
  using T = Accumulator<X>;
  const AttentionBlock& b = a.block;
  const Tile tile = make_tile(b.lanes);
  const int64 items = b.groups.num_groups * b.num_heads;
  for (int64 item = tile.first; item < items; item += tile.count) {
    const int64 g = item / b.num_heads, head = item % b.num_heads, j = b.groups.row[g];
    const bool alone = b.groups.piece[g] < 0;
    const int64 at = j * b.num_heads + head, begin = at * b.head_width;
    Window<X, V, K> window{{0, b.head_width}, {}, {}};
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
      window.add_to(tile, window.dz, static_cast<T*>(a.dz) + begin, alone);
      window.base += window.span(tile);
    } while (window.base < b.head_width);
  }
}

}  // namespace hpcgnn

using namespace hpcgnn;

#define HPCGNN_ADDITIVE(x, X, v, k)                                                              \
  HPCGNN_KERNEL(additive_forward_##x##_v##v##_k##k, ForwardArguments, additive_forward<X, v, k>) \
  HPCGNN_KERNEL(additive_backward_##x##_v##v##_k##k, AdditiveBackward, additive_backward<X, v, k>)

HPCGNN_ATTENTION_SHAPES(HPCGNN_ADDITIVE, 8)
