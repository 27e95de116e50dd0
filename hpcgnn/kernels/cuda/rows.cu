/// Rows packed for an exchange, added where they arrive, and dropped by name.
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

/// out[rows[i]] += x[i]; rows may repeat, so that the additions are atomic, in any order.
template <class X, int V>
HPCGNN_DEVICE void scatter_add(const RowsArguments& a) {
  using T = Accumulator<X>;
  const Tile tile = make_tile(a.lanes);
  for (int64 i = tile.first; i < a.num_rows; i += tile.count) {
    const X* const from = static_cast<const X*>(a.x) + i * a.width;
    T* const to = static_cast<T*>(a.out) + a.rows[i] * a.width;
    for (int64 column = tile.lane * V; column < a.width; column += tile.lanes * V) {
      const Pack<X, V> pack = load<V>(from + column);
#pragma unroll
      for (int v = 0; v < V; ++v) atomicAdd(to + column + v, widen(pack.at[v]));
    }
  }
}

struct DropoutArguments {
  const void* x;
  const int64* row_ids;
  void* out;
  int64 num_rows;
  int64 width;
  uint64 key;
  uint64 threshold;  ///< 32 random bits below it mean "dropped"
  double scale;      ///< of the elements that stay
  int32 lanes;
};

/// One word decides over two neighbouring elements of a row, as on the CPU.
template <class T>
HPCGNN_DEVICE void dropout(const DropoutArguments& a) {
  const Tile tile = make_tile(a.lanes);
  const T scale = static_cast<T>(a.scale);
  for (int64 i = tile.first; i < a.num_rows; i += tile.count) {
    const uint64 stream = mix_bits(row_stream(a.key, a.row_ids[i]));
    const T* const x = static_cast<const T*>(a.x) + i * a.width;
    T* const out = static_cast<T*>(a.out) + i * a.width;
    for (int64 pair = tile.lane; 2 * pair < a.width; pair += tile.lanes) {
      const uint64 bits = mix_bits(stream + static_cast<uint64>(pair) * kGolden);
      const int64 even = 2 * pair, odd = even + 1;
      out[even] = (bits & 0xffffffffu) >= a.threshold ? x[even] * scale : T(0);
      if (odd < a.width) out[odd] = bits >> 32 >= a.threshold ? x[odd] * scale : T(0);
    }
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
HPCGNN_KERNEL(dropout_f32, DropoutArguments, dropout<float>)
HPCGNN_KERNEL(dropout_f64, DropoutArguments, dropout<double>)
