/// Element types, tiles of threads and random bits shared by every kernel.
///
/// NVRTC and nvcc compile these files for the GPU, and the tests compile the same files with the
/// host's compiler, so they include only each other. Pointers are checked in Python, never here.
/// Counts and offsets are 64 bits wide, loops stride over the grid, and every size may be zero.
#pragma once

#define HPCGNN_DEVICE __device__ __forceinline__

/// Defines the kernel `name`, which calls `function` on its arguments, one struct by value. A file
/// may first define the least number of blocks on a multiprocessor, which bounds the registers.
#ifdef HPCGNN_BLOCKS
#define HPCGNN_BOUNDS __launch_bounds__(256, HPCGNN_BLOCKS)
#else
#define HPCGNN_BOUNDS __launch_bounds__(256)
#endif
#ifndef HPCGNN_KERNEL
#define HPCGNN_KERNEL(name, Arguments, ...) \
  extern "C" __global__ void HPCGNN_BOUNDS name(const Arguments a) { __VA_ARGS__(a); }
#endif

namespace hpcgnn {

using int32 = int;
using int64 = long long;
using uint16 = unsigned short;
using uint32 = unsigned int;
using uint64 = unsigned long long;

/// Upper 16 bits of an IEEE float32, and IEEE binary16: raw bits, as on the CPU.
struct BFloat16 {
  uint16 bits;
};
struct Float16 {
  uint16 bits;
};

/// The type of sums.
template <class X>
struct AccumulatorOf {
  using Type = float;
};
template <>
struct AccumulatorOf<double> {
  using Type = double;
};
template <class X>
using Accumulator = typename AccumulatorOf<X>::Type;

template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

HPCGNN_DEVICE float widen(float value) { return value; }
HPCGNN_DEVICE double widen(double value) { return value; }
HPCGNN_DEVICE float widen(BFloat16 value) {
  return __uint_as_float(static_cast<uint32>(value.bits) << 16);
}
HPCGNN_DEVICE float widen(Float16 value) {
  const uint32 sign = static_cast<uint32>(value.bits & 0x8000u) << 16;
  const uint32 magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return __uint_as_float(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13) |
                           (magnitude > 0x7c00u ? 0x400000u : 0u));
  // CuPy compiles with subnormal float32 as zero: a subnormal half is computed from its digits.
  const float scaled = magnitude < 0x400u ? static_cast<float>(magnitude) * 0x1p-24f
                                          : __uint_as_float((magnitude << 13) + 0x38000000u);
  return __uint_as_float(sign | __float_as_uint(scaled));
}

/// Narrowing rounds to nearest, ties to even; a NaN stays a NaN.
HPCGNN_DEVICE void narrow(float value, float& out) { out = value; }
HPCGNN_DEVICE void narrow(double value, double& out) { out = value; }
HPCGNN_DEVICE void narrow(float value, BFloat16& out) {
  const uint32 bits = __float_as_uint(value);
  const bool none = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  out.bits = static_cast<uint16>(none ? (bits >> 16) | 0x0040u : rounded >> 16);
}
HPCGNN_DEVICE void narrow(float value, Float16& out) {
  const uint32 bits = __float_as_uint(value);
  const uint32 sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  uint32 half;
  if (magnitude > 0x7f800000u)
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  else if (magnitude >= 0x477ff000u)
    half = 0x7c00u;
  else if (magnitude < 0x38800000u)
    // Adding 0.5 aligns a subnormal result with the last bits of the sum, which then rounds it.
    half = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
  else
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  out.bits = static_cast<uint16>(sign | half);
}

/// V elements that one load or store of up to 16 bytes moves.
template <class X, int V>
struct alignas(sizeof(X) * V < 16 ? sizeof(X) * V : 16) Pack {
  X at[V];
};
template <int V, class X>
HPCGNN_DEVICE Pack<X, V> load(const X* from) {
  return *reinterpret_cast<const Pack<X, V>*>(from);
}
template <class X, int V>
HPCGNN_DEVICE void store(const Pack<X, V>& pack, X* to) {
  *reinterpret_cast<Pack<X, V>*>(to) = pack;
}

/// out (+)= sum, element by element.
template <class Y, int V, class T>
HPCGNN_DEVICE void put(const T (&sum)[V], bool add, Y* out) {
  Pack<Y, V> pack;
  if (add) pack = load<V>(static_cast<const Y*>(out));
#pragma unroll
  for (int v = 0; v < V; ++v) narrow(add ? widen(pack.at[v]) + sum[v] : sum[v], pack.at[v]);
  store(pack, out);
}

/// to[v] += sum[v] where several writers add, in any order.
template <class T, int V>
HPCGNN_DEVICE void add_atomically(const T (&sum)[V], T* to) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kSame<T, float> && V % 4 == 0) {
#pragma unroll
    for (int v = 0; v < V; v += 4)
      asm volatile(
          "red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to + v)),
          "f"(sum[v]), "f"(sum[v + 1]), "f"(sum[v + 2]), "f"(sum[v + 3])
          : "memory");
  } else
#endif
  {
#pragma unroll
    for (int v = 0; v < V; ++v) atomicAdd(to + v, sum[v]);
  }
}

/// Neighbouring threads of a warp, a power of two, that work on one item together. Tile number
/// `first` takes the items first, first + count, ...
struct Tile {
  int lanes, lane;
  uint32 mask;
  int64 first, count;
};
HPCGNN_DEVICE Tile make_tile(int lanes) {
  const int64 threads = blockDim.x, thread = blockIdx.x * threads + threadIdx.x;
  const int base = static_cast<int>(threadIdx.x) & 31 & ~(lanes - 1);
  const uint32 mask = lanes == 32 ? ~0u : ((1u << lanes) - 1) << base;
  return {lanes, static_cast<int>(threadIdx.x) & (lanes - 1), mask, thread / lanes,
          gridDim.x * threads / lanes};
}

template <class T>
HPCGNN_DEVICE T shuffle(const Tile& tile, T value, int lane) {
  return __shfl_sync(tile.mask, value, lane, tile.lanes);
}
template <class T>
HPCGNN_DEVICE T sum_of_tile(const Tile& tile, T value) {
  for (int step = tile.lanes / 2; step > 0; step /= 2)
    value += __shfl_xor_sync(tile.mask, value, step, tile.lanes);
  return value;
}
/// The largest number of a tile, ignoring NaN.
template <class T>
HPCGNN_DEVICE T largest_of_tile(const Tile& tile, T value) {
  for (int step = tile.lanes / 2; step > 0; step /= 2) {
    const T other = __shfl_xor_sync(tile.mask, value, step, tile.lanes);
    value = other > value || value != value ? other : value;
  }
  return value;
}

HPCGNN_DEVICE float exponential(float x) { return expf(x); }
HPCGNN_DEVICE double exponential(double x) { return exp(x); }
HPCGNN_DEVICE float logarithm(float x) { return logf(x); }
HPCGNN_DEVICE double logarithm(double x) { return log(x); }
template <class T>
HPCGNN_DEVICE T infinity() {
  return static_cast<T>(__uint_as_float(0x7f800000u));
}

/// SplitMix64 of keys and ids, bit for bit as in hpcgnn/kernels/src/random_bits.h.
constexpr uint64 kGolden = 0x9e3779b97f4a7c15u;
HPCGNN_DEVICE uint64 mix_bits(uint64 z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
HPCGNN_DEVICE uint64 row_stream(uint64 key, int64 row_id) {
  return mix_bits(mix_bits(key + kGolden) + static_cast<uint64>(row_id) * kGolden);
}

/// Neighbour groups: at most `size` consecutive non-zeros of one row. A row of more than one group
/// is split; its groups are pieces, numbered consecutively over all split rows.
struct Groups {
  const int32* row;           ///< (num_groups,) row of the pattern
  const int64* start;         ///< (num_groups,) first non-zero
  const int64* stop;          ///< (num_groups,) end of its non-zeros
  const int64* piece;         ///< (num_groups,) number of the piece; -1 = alone on its row
  const int32* split_rows;    ///< (num_split,) split rows
  const int64* split_starts;  ///< (num_split + 1,) first piece of each
  int64 num_groups;
  int64 num_split;
};

}  // namespace hpcgnn
