/// Rows packed for an exchange, added on arrival, and ended by bias, rectifier and dropout.
#include "common.cuh"

namespace hpcgnn {

struct RowsArguments {
  const void* x;
  const int32* rows;  ///< null = row i
  void* out;
  int64 num_rows;
  int64 width;
  int32 lanes;
};

/// out[i] = x[rows[i]].
template <class X, class Y, int V>
HPCGNN_DEVICE void gather(const RowsArguments& a) {
  const Tile tile = make_tile(a.lanes);
  for (int64 i = tile.first; i < a.num_rows; i += tile.count) {
    const X* const from = static_cast<const X*>(a.x) + (a.rows ? a.rows[i] : i) * a.width;
    Y* const to = static_cast<Y*>(a.out) + i * a.width;
    for (int64 column = tile.lane * V; column < a.width; column += tile.lanes * V) {
      const Pack<X, V> pack = load<V>(from + column);
      if constexpr (kSame<X, Y>) {
        store(pack, to + column);
      } else {
        Pack<Y, V> converted;
#pragma unroll
        for (int v = 0; v < V; ++v) narrow(widen(pack.at[v]), converted.at[v]);
        store(converted, to + column);
      }
    }
  }
}

/// out[rows[i]] += x[i]; rows may repeat, so the additions are atomic, in any order.
template <class X, int V>
HPCGNN_DEVICE void scatter_add(const RowsArguments& a) {
  using T = Accumulator<X>;
  const Tile tile = make_tile(a.lanes);
  for (int64 i = tile.first; i < a.num_rows; i += tile.count) {
    const X* const from = static_cast<const X*>(a.x) + i * a.width;
    T* const to = static_cast<T*>(a.out) + a.rows[i] * a.width;
    for (int64 column = tile.lane * V; column < a.width; column += tile.lanes * V) {
      const Pack<X, V> pack = load<V>(from + column);
      T values[V];
#pragma unroll
      for (int v = 0; v < V; ++v) values[v] = widen(pack.at[v]);
      add_atomically(values, to + column);
    }
  }
}

/// The end of a layer: out = drop(rectify(x + bias)), rounded once.
struct EpilogueArguments {
  const void* x;
  const void* bias;      ///< (width,) accumulator type; null = none
  const int64* row_ids;  ///< null = no dropout
  void* out;             ///< may be x
  int64 num_rows;
  int64 width;
  uint64 key;
  uint64 threshold;  ///< 32 random bits below it mean "dropped"
  double scale;      ///< of the elements that stay
  int32 rectify;
  int32 lanes;
};

/// One random word is used for two neighbouring elements of a row, as on the CPU; V is 1 or 2.
template <class X, int V>
HPCGNN_DEVICE void finish(const EpilogueArguments& a) {
  using T = Accumulator<X>;
  const Tile tile = make_tile(a.lanes);
  const T* const bias = static_cast<const T*>(a.bias);
  const T scale = static_cast<T>(a.scale);
  for (int64 i = tile.first; i < a.num_rows; i += tile.count) {
    const uint64 stream = a.row_ids ? mix_bits(row_stream(a.key, a.row_ids[i])) : 0;
    const X* const x = static_cast<const X*>(a.x) + i * a.width;
    X* const out = static_cast<X*>(a.out) + i * a.width;
    for (int64 pair = tile.lane; 2 * pair < a.width; pair += tile.lanes) {
      uint64 bits = a.row_ids ? mix_bits(stream + static_cast<uint64>(pair) * kGolden) : 0;
      for (int64 column = 2 * pair; column < 2 * pair + 2 && column < a.width; column += V) {
        Pack<X, V> pack = load<V>(x + column);
#pragma unroll
        for (int v = 0; v < V; ++v, bits >>= 32) {
          T value = widen(pack.at[v]);
          if (bias) value += bias[column + v];
          // With this comparison NaN stays NaN.
          if (a.rectify && value < T(0)) value = T(0);
          if (a.row_ids) value = (bits & 0xffffffffu) >= a.threshold ? value * scale : T(0);
          narrow(value, pack.at[v]);
        }
        store(pack, out + column);
      }
    }
  }
}

/// Its adjoint: out = scale * gradient where the result is positive, else 0; and sums of columns.
struct EpilogueGradientArguments {
  const void* gradient;
  const void* result;  ///< null = all of it counts as positive
  void* out;           ///< may be gradient; null = only the sums
  void* sums;          ///< (num_shares, width) accumulator type: of rows s, s + num_shares, ...
  int64 num_rows;
  int64 width;
  int64 num_shares;
  double scale;
  int32 lanes;
};

/// Several rows are loaded before the first is written.
constexpr int kRowsAhead = 4;

template <class X, int V>
HPCGNN_DEVICE void finish_gradient(const EpilogueGradientArguments& a) {
  using T = Accumulator<X>;
  const Tile tile = make_tile(a.lanes);
  const T scale = static_cast<T>(a.scale);
  const X* const gradients = static_cast<const X*>(a.gradient);
  const X* const results = static_cast<const X*>(a.result);
  for (int64 share = tile.first; share < a.num_shares; share += tile.count) {
    for (int64 column = tile.lane * V; column < a.width; column += tile.lanes * V) {
      T sums[V] = {};
      for (int64 first = share; first < a.num_rows; first += kRowsAhead * a.num_shares) {
        Pack<X, V> packs[kRowsAhead], made[kRowsAhead];
#pragma unroll
        for (int u = 0; u < kRowsAhead; ++u) {
          const int64 row = first + u * a.num_shares;
          if (row < a.num_rows) packs[u] = load<V>(gradients + row * a.width + column);
          if (row < a.num_rows && results) made[u] = load<V>(results + row * a.width + column);
        }
#pragma unroll
        for (int u = 0; u < kRowsAhead; ++u) {
          const int64 row = first + u * a.num_shares;
          if (row >= a.num_rows) continue;
#pragma unroll
          for (int v = 0; v < V; ++v) {
            T value = scale * widen(packs[u].at[v]);
            if (results && !(widen(made[u].at[v]) > T(0))) value = T(0);
            sums[v] += value;
            narrow(value, packs[u].at[v]);
          }
          if (a.out) store(packs[u], static_cast<X*>(a.out) + row * a.width + column);
        }
      }
      if (a.sums) put<T>(sums, false, static_cast<T*>(a.sums) + share * a.width + column);
    }
  }
}

/// sums[column] = the sum of the shares, in a fixed order; an item is a column.
struct JoinArguments {
  const void* shares;  ///< (num_shares, width)
  void* sums;          ///< (width,)
  int64 num_shares;
  int64 width;
};

template <class T>
HPCGNN_DEVICE void join_shares(const JoinArguments& a) {
  const Tile tile = make_tile(32);
  for (int64 column = tile.first; column < a.width; column += tile.count) {
    T sum = 0;
#pragma unroll 8
    for (int64 share = tile.lane; share < a.num_shares; share += tile.lanes)
      sum += static_cast<const T*>(a.shares)[share * a.width + column];
    sum = sum_of_tile(tile, sum);
    if (tile.lane == 0) static_cast<T*>(a.sums)[column] = sum;
  }
}

}  // namespace hpcgnn

using namespace hpcgnn;

#define HPCGNN_GATHER(x, X, y, Y, v) \
  HPCGNN_KERNEL(gather_##x##_##y##_v##v, RowsArguments, gather<X, Y, v>)
#define HPCGNN_SCATTER(x, X, v) \
  HPCGNN_KERNEL(scatter_add_##x##_v##v, RowsArguments, scatter_add<X, v>)

HPCGNN_GATHER(f32, float, f32, float, 4)
HPCGNN_GATHER(f32, float, f32, float, 1)
HPCGNN_GATHER(f64, double, f64, double, 2)
HPCGNN_GATHER(f64, double, f64, double, 1)
HPCGNN_GATHER(bf16, BFloat16, bf16, BFloat16, 8)
HPCGNN_GATHER(bf16, BFloat16, bf16, BFloat16, 1)
HPCGNN_GATHER(f32, float, bf16, BFloat16, 4)
HPCGNN_GATHER(f32, float, bf16, BFloat16, 1)
HPCGNN_GATHER(bf16, BFloat16, f32, float, 4)
HPCGNN_GATHER(bf16, BFloat16, f32, float, 1)
HPCGNN_GATHER(f32, float, f16, Float16, 4)
HPCGNN_GATHER(f32, float, f16, Float16, 1)
HPCGNN_GATHER(f16, Float16, f32, float, 4)
HPCGNN_GATHER(f16, Float16, f32, float, 1)
HPCGNN_SCATTER(f32, float, 4)
HPCGNN_SCATTER(f32, float, 1)
HPCGNN_SCATTER(f64, double, 2)
HPCGNN_SCATTER(f64, double, 1)
HPCGNN_SCATTER(bf16, BFloat16, 4)
HPCGNN_SCATTER(bf16, BFloat16, 1)
HPCGNN_SCATTER(f16, Float16, 4)
HPCGNN_SCATTER(f16, Float16, 1)
#define HPCGNN_ENDING(x, X, v) HPCGNN_KERNEL(finish_##x##_v##v, EpilogueArguments, finish<X, v>)
#define HPCGNN_ENDING_GRADIENT(x, X, v) \
  HPCGNN_KERNEL(finish_gradient_##x##_v##v, EpilogueGradientArguments, finish_gradient<X, v>)
HPCGNN_ENDING(f32, float, 2)
HPCGNN_ENDING(f32, float, 1)
HPCGNN_ENDING(f64, double, 2)
HPCGNN_ENDING(f64, double, 1)
HPCGNN_ENDING(bf16, BFloat16, 2)
HPCGNN_ENDING(bf16, BFloat16, 1)
HPCGNN_ENDING_GRADIENT(f32, float, 4)
HPCGNN_ENDING_GRADIENT(f32, float, 1)
HPCGNN_ENDING_GRADIENT(f64, double, 2)
HPCGNN_ENDING_GRADIENT(f64, double, 1)
HPCGNN_ENDING_GRADIENT(bf16, BFloat16, 4)
HPCGNN_ENDING_GRADIENT(bf16, BFloat16, 1)
HPCGNN_KERNEL(join_shares_f32, JoinArguments, join_shares<float>)
HPCGNN_KERNEL(join_shares_f64, JoinArguments, join_shares<double>)
