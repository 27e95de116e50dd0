/// Neighbour-grouped aggregation (pull): out[rows[i]] (+)= sum of values[e] * x[indices[e]].
///
/// A tile of threads takes a group of non-zeros, its threads the columns of x. A group alone on its
/// row stores its sum; pieces of a split row add theirs atomically or, if out has 16 bits, leave
/// them in float32 for `spmm_join`. If out is overwritten, `spmm_clear` has cleared the rows to
/// which no group stores.
#include "common.cuh"

namespace hpcgnn {

struct SpmmArguments {
  Groups groups;
  const int64* indptr;   ///< of the pattern, for `mean`
  const int32* indices;  ///< columns of the pattern, rows of x
  const void* values;    ///< null = all ones
  const void* x;
  void* out;
  void* pieces;        ///< (pieces, width) sums of pieces, where out has 16 bits
  const int32* rows;   ///< row of out of each row of the pattern; null = identity
  const int32* clear;  ///< (num_clear,) rows of the pattern that `spmm_clear` clears
  int64 num_clear;
  int64 width;
  int32 lanes;
  int32 accumulate;
  int32 mean;
};

HPCGNN_DEVICE int64 place_of(const int32* rows, int64 row) { return rows ? rows[row] : row; }

/// Several rows are loaded before the first is used.
constexpr int kRowsAhead = 8;

/// sum += values[e] * x[indices[e]] for the non-zeros [e, stop).
template <class X, int V, class T>
HPCGNN_DEVICE void add_rows(const SpmmArguments& a, int64 e, int64 stop, const X* x, T (&sum)[V]) {
  const T* const values = static_cast<const T*>(a.values);
  for (; e + kRowsAhead <= stop; e += kRowsAhead) {
    Pack<X, V> packs[kRowsAhead];
#pragma unroll
    for (int u = 0; u < kRowsAhead; ++u) packs[u] = load<V>(x + a.indices[e + u] * a.width);
#pragma unroll
    for (int u = 0; u < kRowsAhead; ++u) {
      const T value = values ? values[e + u] : T(1);
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += value * widen(packs[u].at[v]);
    }
  }
  // For the last few, batches of conditional loads take longer than this.
  for (; e < stop; ++e) {
    const Pack<X, V> pack = load<V>(x + a.indices[e] * a.width);
    const T value = values ? values[e] : T(1);
#pragma unroll
    for (int v = 0; v < V; ++v) sum[v] += value * widen(pack.at[v]);
  }
}

template <class X, class Y, int V>
HPCGNN_DEVICE void spmm(const SpmmArguments& a) {
  using T = Accumulator<X>;
  const Tile tile = make_tile(a.lanes);
  for (int64 g = tile.first; g < a.groups.num_groups; g += tile.count) {
    const int64 row = a.groups.row[g], piece = a.groups.piece[g];
    const int64 start = a.groups.start[g], stop = a.groups.stop[g];
    const int64 out_row = place_of(a.rows, row) * a.width;
    const T divisor = a.mean ? static_cast<T>(a.indptr[row + 1] - a.indptr[row]) : T(1);
    for (int64 column = tile.lane * V; column < a.width; column += tile.lanes * V) {
      T sum[V] = {};
      add_rows<X, V>(a, start, stop, static_cast<const X*>(a.x) + column, sum);
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] /= divisor;
      Y* const out = static_cast<Y*>(a.out) + out_row + column;
      if (piece < 0) {
        put<Y>(sum, a.accumulate, out);
      } else if constexpr (kSame<Y, T>) {
        add_atomically(sum, out);
      } else {
        put<T>(sum, false, static_cast<T*>(a.pieces) + piece * a.width + column);
      }
    }
  }
}

/// Set rows of out to zero.
template <class Y>
HPCGNN_DEVICE void spmm_clear(const SpmmArguments& a) {
  const Tile tile = make_tile(a.lanes);
  for (int64 i = tile.first; i < a.num_clear; i += tile.count) {
    Y* const out = static_cast<Y*>(a.out) + place_of(a.rows, a.clear[i]) * a.width;
    for (int64 column = tile.lane; column < a.width; column += tile.lanes) out[column] = Y{};
  }
}

/// Add up the pieces of each split row, in order.
template <class Y>
HPCGNN_DEVICE void spmm_join(const SpmmArguments& a) {
  const Tile tile = make_tile(a.lanes);
  const float* const pieces = static_cast<const float*>(a.pieces);
  for (int64 i = tile.first; i < a.groups.num_split; i += tile.count) {
    Y* const out = static_cast<Y*>(a.out) + place_of(a.rows, a.groups.split_rows[i]) * a.width;
    for (int64 column = tile.lane; column < a.width; column += tile.lanes) {
      float sum[1] = {};
      for (int64 piece = a.groups.split_starts[i]; piece < a.groups.split_starts[i + 1]; ++piece)
        sum[0] += pieces[piece * a.width + column];
      put<Y>(sum, a.accumulate, out + column);
    }
  }
}

}  // namespace hpcgnn

using namespace hpcgnn;

#define HPCGNN_SPMM(x, X, y, Y, v) \
  HPCGNN_KERNEL(spmm_##x##_##y##_v##v, SpmmArguments, spmm<X, Y, v>)

HPCGNN_SPMM(f32, float, f32, float, 4)
HPCGNN_SPMM(f32, float, f32, float, 1)
HPCGNN_SPMM(f64, double, f64, double, 2)
HPCGNN_SPMM(f64, double, f64, double, 1)
HPCGNN_SPMM(f32, float, bf16, BFloat16, 4)
HPCGNN_SPMM(f32, float, bf16, BFloat16, 1)
HPCGNN_SPMM(f32, float, f16, Float16, 4)
HPCGNN_SPMM(f32, float, f16, Float16, 1)
HPCGNN_SPMM(bf16, BFloat16, bf16, BFloat16, 8)
HPCGNN_SPMM(bf16, BFloat16, bf16, BFloat16, 4)
HPCGNN_SPMM(bf16, BFloat16, bf16, BFloat16, 1)
HPCGNN_SPMM(bf16, BFloat16, f32, float, 8)
HPCGNN_SPMM(bf16, BFloat16, f32, float, 4)
HPCGNN_SPMM(bf16, BFloat16, f32, float, 1)
HPCGNN_SPMM(f16, Float16, f32, float, 8)
HPCGNN_SPMM(f16, Float16, f32, float, 4)
HPCGNN_SPMM(f16, Float16, f32, float, 1)
HPCGNN_KERNEL(spmm_clear_f32, SpmmArguments, spmm_clear<float>)
HPCGNN_KERNEL(spmm_clear_f64, SpmmArguments, spmm_clear<double>)
HPCGNN_KERNEL(spmm_clear_bf16, SpmmArguments, spmm_clear<BFloat16>)
HPCGNN_KERNEL(spmm_clear_f16, SpmmArguments, spmm_clear<Float16>)
HPCGNN_KERNEL(spmm_join_bf16, SpmmArguments, spmm_join<BFloat16>)
HPCGNN_KERNEL(spmm_join_f16, SpmmArguments, spmm_join<Float16>)
