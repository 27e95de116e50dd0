/// Shared by the attention kernels of all scores: the block, dropout by ids, the softmax state and
/// its merging, the forward pass, and the numbers of an edge in a backward pass.
///
/// Same meaning as hpcgnn/kernels/src/attention/attention.h. Each score has its own file with the
/// logit of an edge and its gradient.
#pragma once

#include "common.cuh"

namespace hpcgnn {

/// An element is dropped if the 32 random bits of its ids are below `threshold`; 0 = keep all.
struct DropoutBits {
  uint64 key;
  uint64 threshold;
};

struct AttentionBlock {
  Groups groups;            ///< of the pattern, or of its transpose in the backward pass
  const int64* indptr;      ///< of the same pattern
  const int32* indices;     ///< of the same pattern
  const int32* rows;        ///< row of the state of each row of the block; null = identity
  const int64* row_ids;     ///< name of each row of the block; null without dropout
  const int64* column_ids;  ///< name of each column of the block; null without dropout
  const void* z;            ///< (num_columns, num_heads * head_width)
  const void* source;       ///< (num_columns, num_heads); the vector where scores are dynamic
  const void* target;       ///< (num_targets, num_heads); as wide as z where scores are dynamic
  DropoutBits edges;        ///< of edges with all their heads, before the softmax
  DropoutBits weights;      ///< of weights, for each head; kept ones are scaled
  double scale;
  double slope;
  int64 num_heads;
  int64 head_width;
  int32 lanes;
};

/// top, total: (rows, num_heads); out: (rows, num_heads * head_width).
struct AttentionState {
  void* top;
  void* total;
  void* out;
};

struct ForwardArguments {
  AttentionBlock block;
  AttentionState state;
  AttentionState pieces;
};

/// The arrays that a backward pass needs of the softmax and its result.
struct SoftmaxGradient {
  const void* lse;    ///< (num_targets, num_heads)
  const void* grad;   ///< (num_targets, num_heads * head_width)
  const void* delta;  ///< (num_targets, num_heads)
};

constexpr uint64 kHeadStep = 0xd1342543de82ef95u;

HPCGNN_DEVICE bool dropped(const AttentionBlock& b, const DropoutBits& bits, int64 row,
                           int64 column, int64 head) {
  if (bits.threshold == 0) return false;
  const uint64 edge =
      row_stream(bits.key, b.row_ids[row]) + static_cast<uint64>(b.column_ids[column]) * kGolden;
  return (mix_bits(edge + static_cast<uint64>(head) * kHeadStep) & 0xffffffffu) < bits.threshold;
}

/// 0, or the scale of the weights that are kept.
template <class T>
HPCGNN_DEVICE T kept_share(const AttentionBlock& b, int64 row, int64 column, int64 head) {
  if (b.weights.threshold == 0) return T(1);
  return dropped(b, b.weights, row, column, head) ? T(0) : static_cast<T>(b.scale);
}

HPCGNN_DEVICE int64 state_row(const AttentionBlock& b, int64 row) {
  return b.rows ? b.rows[row] : row;
}

template <class T>
HPCGNN_DEVICE T rectified(T x, T slope) {
  return x > 0 ? x : slope * x;
}

/// exp(logit - lse), at most 1: where logits are large, rounding may have left lse far below one.
template <class T>
HPCGNN_DEVICE T share_of(T logit, T lse) {
  const T log = logit - lse;
  return exponential(log > 0 ? T(0) : log);
}

/// A thread's edge in a backward pass: its other end, a row of the state or a column, and the
/// numbers of its row.
template <class T>
struct Edge {
  int64 other;
  T lse, delta, kept;
};

/// @param at the row of the state that belongs to the row of the block
template <class T>
HPCGNN_DEVICE Edge<T> edge_of(const AttentionBlock& b, const SoftmaxGradient& saved, int64 row,
                              int64 at, int64 column, int64 head, int64 other) {
  const int64 place = at * b.num_heads + head;
  T lse = static_cast<const T*>(saved.lse)[place];
  // All edges of such a row were dropped: exp(e - inf) is 0, but exp(e + inf) is not.
  if (lse == -infinity<T>() || dropped(b, b.edges, row, column, 0)) lse = infinity<T>();
  return {other, lse, static_cast<const T*>(saved.delta)[place],
          kept_share<T>(b, row, column, head)};
}

/// Maximum and sum of a softmax, to which edges are added batch by batch.
template <class T>
struct RunningSoftmax {
  T top, total;

  /// Add the logits of a tile, one for each thread. Returns the thread's exp(logit - top), and
  /// writes the factor of earlier sums to `scale`.
  HPCGNN_DEVICE T join(const Tile& tile, T logit, T& scale) {
    const T none = -infinity<T>(), old = top;
    const T largest = largest_of_tile(tile, logit);
    if (largest > top) top = largest;
    // If all edges are left out, exp(-inf - 0) is 0, but -inf - -inf would be NaN.
    const T weight = exponential(logit - (top == none ? T(0) : top));
    scale = old == none ? T(0) : old == top ? T(1) : exponential(old - top);
    total = total * scale + sum_of_tile(tile, weight);
    // The maximum misses NaN; the sum does not.
    if (total != total) top = total;
    return weight;
  }
};

/// Columns base + (k * lanes + lane) * V ... of a head, which a tile holds in registers.
template <int V, int K>
struct Columns {
  int64 base, width;

  HPCGNN_DEVICE int64 span(const Tile& tile) const {
    return static_cast<int64>(tile.lanes) * V * K;
  }
  HPCGNN_DEVICE int64 at(const Tile& tile, int k) const {
    return base + static_cast<int64>(k * tile.lanes + tile.lane) * V;
  }
  /// Reads zeros beyond the width of the head.
  template <class Y, class T>
  HPCGNN_DEVICE void read(const Tile& tile, const Y* from, T (&to)[K][V]) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      Pack<Y, V> pack = {};
      if (at(tile, k) < width) pack = load<V>(from + at(tile, k));
#pragma unroll
      for (int v = 0; v < V; ++v) to[k][v] = widen(pack.at[v]);
    }
  }
  /// to[column] += values for the columns of this thread, by one writer or by several.
  template <class T>
  HPCGNN_DEVICE void add_to(const Tile& tile, const T (&values)[K][V], T* to, bool alone) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (at(tile, k) >= width) continue;
      if (alone)
        put<T>(values[k], true, to + at(tile, k));
      else
        add_atomically(values[k], to + at(tile, k));
    }
  }
  /// Calls body(column) for this thread's share of the columns that no register holds.
  template <class Body>
  HPCGNN_DEVICE void outside(const Tile& tile, const Body& body) const {
    if (width <= span(tile)) return;
    for (int64 column = tile.lane; column < width; column += tile.lanes)
      if (column < base || column >= base + span(tile)) body(column);
  }
};

/// to += value, by one writer or by several.
template <class T>
HPCGNN_DEVICE void gain_at(T* to, T value, bool alone) {
  if (alone)
    *to += value;
  else
    atomicAdd(to, value);
}

/// The sums of columns base + (k * lanes + lane) * V ... of a head, in registers.
template <class X, int V, int K>
struct HeadSums {
  using T = Accumulator<X>;
  T sum[K][V];

  /// Calls body(k, column) for the columns of this thread that exist.
  template <class Body>
  HPCGNN_DEVICE static void columns(const Tile& tile, int64 base, int64 width, const Body& body) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int64 column = base + static_cast<int64>(k * tile.lanes + tile.lane) * V;
      if (column < width) body(k, column);
    }
  }
  HPCGNN_DEVICE void begin(const Tile& tile, int64 base, int64 width, const T* from) {
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int v = 0; v < V; ++v) sum[k][v] = 0;
    if (from == nullptr) return;
    columns(tile, base, width, [&](int k, int64 column) {
      const Pack<T, V> pack = load<V>(from + column);
#pragma unroll
      for (int v = 0; v < V; ++v) sum[k][v] = pack.at[v];
    });
  }
  HPCGNN_DEVICE void scale_by(T scale) {
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int v = 0; v < V; ++v) sum[k][v] *= scale;
  }
  HPCGNN_DEVICE void add(const Tile& tile, int64 base, int64 width, T weight, const X* z) {
    columns(tile, base, width, [&](int k, int64 column) {
      const Pack<X, V> pack = load<V>(z + column);
#pragma unroll
      for (int v = 0; v < V; ++v) sum[k][v] += weight * widen(pack.at[v]);
    });
  }
  HPCGNN_DEVICE void end(const Tile& tile, int64 base, int64 width, T* to) const {
    columns(tile, base, width, [&](int k, int64 column) { put<T>(sum[k], false, to + column); });
  }
};

/// Add edges to the states of their rows; no tensor of edges exists.
///
/// A tile takes a group of edges and one head. Each thread first holds an edge, for the logits and
/// their maximum; then columns of z, which it sums, one edge after the other. A group alone on its
/// row updates the state; pieces of a split row leave separate states, which `attention_merge`
/// merges in order: the result is the same every time.
///
/// `logits.begin` gets the row of the state and the head; `logits` is called with a batch of edges,
/// one for each thread, and returns the thread's logit.
template <class X, int V, int K, class Logits>
HPCGNN_DEVICE void attend(const ForwardArguments& a, Logits logits) {
  using T = Accumulator<X>;
  const AttentionBlock& b = a.block;
  const Tile tile = make_tile(b.lanes);
  const int64 pitch = b.num_heads * b.head_width, items = b.groups.num_groups * b.num_heads;
  for (int64 item = tile.first; item < items; item += tile.count) {
    const int64 g = item / b.num_heads, head = item % b.num_heads;
    const int64 row = b.groups.row[g], piece = b.groups.piece[g];
    const int64 start = b.groups.start[g], stop = b.groups.stop[g];
    const int64 reached = state_row(b, row);
    logits.begin(tile, reached, head);
    const AttentionState& state = piece < 0 ? a.state : a.pieces;
    const int64 at = (piece < 0 ? reached : piece) * b.num_heads + head;
    T* const top = static_cast<T*>(state.top) + at;
    T* const total = static_cast<T*>(state.total) + at;
    T* const out = static_cast<T*>(state.out) + at * b.head_width;
    RunningSoftmax<T> before{-infinity<T>(), 0};
    if (piece < 0) before = {*top, *total};
    RunningSoftmax<T> softmax;
    // Columns beyond the registers of a tile need another walk over the edges; there is one walk
    // even without columns.
    int64 base = 0;
    do {
      softmax = before;
      HeadSums<X, V, K> sums;
      sums.begin(tile, base, b.head_width, before.top == -infinity<T>() ? nullptr : out);
      for (int64 first = start; first < stop; first += tile.lanes) {
        const bool mine = first + tile.lane < stop;
        const int64 column = mine ? b.indices[first + tile.lane] : 0;
        const int count = stop - first < tile.lanes ? static_cast<int>(stop - first) : tile.lanes;
        T logit = logits(tile, column, count);
        if (!mine || dropped(b, b.edges, row, column, 0)) logit = -infinity<T>();
        T scale;
        T weight = softmax.join(tile, logit, scale);
        if (mine) weight *= kept_share<T>(b, row, column, head);
        sums.scale_by(scale);
#pragma unroll 4
        for (int k = 0; k < count; ++k) {
          const X* const z = static_cast<const X*>(b.z) + shuffle(tile, column, k) * pitch;
          sums.add(tile, base, b.head_width, shuffle(tile, weight, k), z + head * b.head_width);
        }
      }
      sums.end(tile, base, b.head_width, out);
      base += static_cast<int64>(tile.lanes) * V * K;
    } while (base < b.head_width);
    if (tile.lane == 0) *top = softmax.top, *total = softmax.total;
  }
}

}  // namespace hpcgnn

/// Calls KERNELS(name, type, elements of a vector, vectors of a thread) for all choices that a
/// launch has; vectors of 16-bit elements have at most `widest`.
#define HPCGNN_ATTENTION_SHAPES(KERNELS, widest) \
  KERNELS(f32, float, 4, 1)                      \
  KERNELS(f32, float, 4, 2)                      \
  KERNELS(f32, float, 1, 1)                      \
  KERNELS(f32, float, 1, 2)                      \
  KERNELS(f64, double, 2, 1)                     \
  KERNELS(f64, double, 2, 2)                     \
  KERNELS(f64, double, 1, 1)                     \
  KERNELS(f64, double, 1, 2)                     \
  KERNELS(bf16, BFloat16, widest, 1)             \
  KERNELS(bf16, BFloat16, widest, 2)             \
  KERNELS(bf16, BFloat16, 1, 1)                  \
  KERNELS(bf16, BFloat16, 1, 2)                  \
  KERNELS(f16, Float16, widest, 1)               \
  KERNELS(f16, Float16, widest, 2)               \
  KERNELS(f16, Float16, 1, 1)                    \
  KERNELS(f16, Float16, 1, 2)
