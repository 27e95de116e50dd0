/// The running state of a softmax: merged and finished; and inner products of heads.
#include "attention.cuh"

namespace hpcgnn {

struct MergeArguments {
  AttentionState state;
  AttentionState other;
  const int64* starts;  ///< rows [starts[i], starts[i + 1]) of other join as item i; null = row i
  const int32* block_rows;  ///< row of the block of each item; null = identity
  const int32* rows;        ///< row of the state of each row of the block; null = identity
  int64 num_items;
  int64 num_heads;
  int64 head_width;
  int32 lanes;
};

/// Merge the states of a tile's item, in the same order every time: first their maximum and sum,
/// one state for each thread, then the columns, state by state, with independent loads.
template <class T, int V>
HPCGNN_DEVICE void merge(const MergeArguments& a) {
  const Tile tile = make_tile(a.lanes);
  const T none = -infinity<T>();
  for (int64 item = tile.first; item < a.num_items * a.num_heads; item += tile.count) {
    const int64 i = item / a.num_heads, head = item % a.num_heads;
    const int64 block_row = a.block_rows ? a.block_rows[i] : i;
    const int64 at = (a.rows ? a.rows[block_row] : block_row) * a.num_heads + head;
    const int64 first = a.starts ? a.starts[i] : i, last = a.starts ? a.starts[i + 1] : i + 1;
    const T* const tops = static_cast<const T*>(a.other.top) + head;
    const T* const totals = static_cast<const T*>(a.other.total) + head;
    T* const top = static_cast<T*>(a.state.top) + at;
    T* const total = static_cast<T*>(a.state.total) + at;
    T* const out = static_cast<T*>(a.state.out) + at * a.head_width;
    const T old_top = *top, old_total = *total;
    T largest = old_top;
    for (int64 piece = first + tile.lane; piece < last; piece += tile.lanes)
      if (tops[piece * a.num_heads] > largest) largest = tops[piece * a.num_heads];
    largest = largest_of_tile(tile, largest);
    // A state without edges has no share: exp(-inf - -inf) would be NaN.
    const auto share_of = [&](T its_top) {
      return its_top == none ? T(0) : exponential(its_top - largest);
    };
    T sum = 0;
    for (int64 piece = first + tile.lane; piece < last; piece += tile.lanes) {
      const T share = share_of(tops[piece * a.num_heads]);
      if (share != T(0)) sum += share * totals[piece * a.num_heads];
    }
    const T old_share = share_of(old_top);
    sum = sum_of_tile(tile, sum) + (old_share == T(0) ? T(0) : old_share * old_total);
    for (int64 base = 0; base < a.head_width; base += tile.lanes * V) {
      const int64 column = base + tile.lane * V;
      const bool inside = column < a.head_width;
      // Sums of a state without a share are never used, as they may be NaN.
      Pack<T, V> mine = {};
      if (inside && old_share != T(0)) mine = load<V>(out + column);
      T values[V];
#pragma unroll
      for (int v = 0; v < V; ++v) values[v] = old_share * mine.at[v];
      for (int64 start = first; start < last; start += tile.lanes) {
        const int count = last - start < tile.lanes ? static_cast<int>(last - start) : tile.lanes;
        const T share = share_of(tops[(start + (tile.lane < count ? tile.lane : 0)) * a.num_heads]);
#pragma unroll 8
        for (int k = 0; k < count; ++k) {
          const int64 from = ((start + k) * a.num_heads + head) * a.head_width;
          const T theirs = shuffle(tile, share, k);
          Pack<T, V> other = {};
          if (inside) other = load<V>(static_cast<const T*>(a.other.out) + from + column);
#pragma unroll
          for (int v = 0; v < V; ++v) values[v] += theirs == T(0) ? T(0) : theirs * other.at[v];
        }
      }
      if (inside) put<T>(values, false, out + column);
    }
    __syncwarp(tile.mask);
    // A NaN sum means that a logit is NaN, which the maximum may miss.
    if (tile.lane == 0) *top = sum != sum ? sum : largest, *total = sum;
  }
}

struct FinishArguments {
  AttentionState state;
  void* into;        ///< (num_rows, num_heads * head_width) in rows `pitch` elements apart
  const void* bias;  ///< (num_heads * head_width,), null = nothing
  int64 num_rows;
  int64 num_heads;
  int64 head_width;
  int64 pitch;
  int32 lanes;
};

/// into = out / total + bias, or the bias alone without edges; top becomes log(sum of exp(e)), or
/// -inf.
template <class T, int V>
HPCGNN_DEVICE void finish(const FinishArguments& a) {
  const Tile tile = make_tile(a.lanes);
  for (int64 at = tile.first; at < a.num_rows * a.num_heads; at += tile.count) {
    const int64 row = at / a.num_heads, first = at % a.num_heads * a.head_width;
    T* const top = static_cast<T*>(a.state.top) + at;
    const T old_top = *top, total = static_cast<const T*>(a.state.total)[at];
    const T* const out = static_cast<const T*>(a.state.out) + at * a.head_width;
    T* const into = static_cast<T*>(a.into) + row * a.pitch + first;
    const T scale = T(1) / total;
    const bool none = old_top == -infinity<T>();
    for (int64 column = tile.lane * V; column < a.head_width; column += tile.lanes * V) {
      Pack<T, V> pack = {}, bias = {};
      if (!none) pack = load<V>(out + column);
      if (a.bias) bias = load<V>(static_cast<const T*>(a.bias) + first + column);
#pragma unroll
      for (int v = 0; v < V; ++v) pack.at[v] = (none ? T(0) : pack.at[v] * scale) + bias.at[v];
      store(pack, into + column);
    }
    __syncwarp(tile.mask);
    if (tile.lane == 0 && !none) *top = old_top + logarithm(total);
  }
}

struct HeadDots {
  const void* x;     ///< (num_rows, num_heads * head_width)
  const void* y;     ///< the same shape, or one row for all
  const void* bias;  ///< one row that is subtracted from y; null = nothing
  void* out;         ///< (num_rows, num_heads), overwritten
  int64 num_rows;
  int64 num_heads;
  int64 head_width;
  int32 y_rows;  ///< whether y has a row for each row of x
  int32 lanes;
};

/// out[i, h] = <x[i, h, :], y[i, h, :] - bias[h, :]>.
template <class X, int V>
HPCGNN_DEVICE void head_dots(const HeadDots& a) {
  using T = Accumulator<X>;
  const Tile tile = make_tile(a.lanes);
  for (int64 at = tile.first; at < a.num_rows * a.num_heads; at += tile.count) {
    const int64 head = at % a.num_heads * a.head_width;
    const X* const x = static_cast<const X*>(a.x) + at * a.head_width;
    const T* const y = static_cast<const T*>(a.y) + (a.y_rows ? at * a.head_width : head);
    const T* const bias = a.bias ? static_cast<const T*>(a.bias) + head : nullptr;
    T sum = 0;
    for (int64 column = tile.lane * V; column < a.head_width; column += tile.lanes * V) {
      const Pack<X, V> left = load<V>(x + column);
      const Pack<T, V> right = load<V>(y + column);
      Pack<T, V> shift = {};
      if (bias) shift = load<V>(bias + column);
#pragma unroll
      for (int v = 0; v < V; ++v) sum += widen(left.at[v]) * (right.at[v] - shift.at[v]);
    }
    sum = sum_of_tile(tile, sum);
    if (tile.lane == 0) static_cast<T*>(a.out)[at] = sum;
  }
}

struct WeightGradient {
  const void* z;     ///< (num_rows, num_heads * head_width)
  const void* gain;  ///< (num_rows, num_heads), the gradient of source
  void* dweights;    ///< (num_heads, head_width), added to
  int64 num_rows;
  int64 num_heads;
  int64 head_width;
  int64 chunk;  ///< rows that one thread sums before it adds
};

/// dweights[h, :] += sum over rows of gain[j, h] * z[j, h, :]; an item is a column and a chunk.
template <class X>
HPCGNN_DEVICE void weight_gradient(const WeightGradient& a) {
  using T = Accumulator<X>;
  const Tile tile = make_tile(1);
  const int64 width = a.num_heads * a.head_width;
  const int64 chunks = (a.num_rows + a.chunk - 1) / a.chunk;
  for (int64 item = tile.first; item < chunks * width; item += tile.count) {
    const int64 column = item % width, first = item / width * a.chunk;
    const int64 last = first + a.chunk < a.num_rows ? first + a.chunk : a.num_rows;
    T sum = 0;
    for (int64 j = first; j < last; ++j)
      sum += static_cast<const T*>(a.gain)[j * a.num_heads + column / a.head_width] *
             widen(static_cast<const X*>(a.z)[j * width + column]);
    atomicAdd(static_cast<T*>(a.dweights) + column, sum);
  }
}

}  // namespace hpcgnn

using namespace hpcgnn;

#define HPCGNN_STATE(x, X, v)                                            \
  HPCGNN_KERNEL(attention_merge_##x##_v##v, MergeArguments, merge<X, v>) \
  HPCGNN_KERNEL(attention_finish_##x##_v##v, FinishArguments, finish<X, v>)
#define HPCGNN_DOTS(x, X, v) HPCGNN_KERNEL(head_dots_##x##_v##v, HeadDots, head_dots<X, v>)

HPCGNN_STATE(f32, float, 4)
HPCGNN_STATE(f32, float, 1)
HPCGNN_STATE(f64, double, 2)
HPCGNN_STATE(f64, double, 1)
HPCGNN_DOTS(f32, float, 4)
HPCGNN_DOTS(f32, float, 1)
HPCGNN_DOTS(f64, double, 2)
HPCGNN_DOTS(f64, double, 1)
HPCGNN_DOTS(bf16, BFloat16, 4)
HPCGNN_DOTS(bf16, BFloat16, 1)
HPCGNN_DOTS(f16, Float16, 4)
HPCGNN_DOTS(f16, Float16, 1)
HPCGNN_KERNEL(weight_gradient_f32, WeightGradient, weight_gradient<float>)
HPCGNN_KERNEL(weight_gradient_f64, WeightGradient, weight_gradient<double>)
HPCGNN_KERNEL(weight_gradient_bf16, WeightGradient, weight_gradient<BFloat16>)
HPCGNN_KERNEL(weight_gradient_f16, WeightGradient, weight_gradient<Float16>)
