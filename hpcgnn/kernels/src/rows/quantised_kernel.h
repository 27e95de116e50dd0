/// Quantised rows, templates over the SIMD types; included once per instruction set.
///
/// Plain loops: over integers, which compilers vectorise without leave to reorder sums of floats.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "random_bits.h"
#include "rows/quantised.h"
#include "simd/half.h"

namespace hpcgnn::kernels {

template <class V, class S>
struct QuantisedKernels {
  static constexpr std::uint16_t kNaN = 0x7fc0u;
  /// Smaller steps would have no reciprocal.
  static constexpr float kSmallestStep = 0x1p-100f;

  struct Grid {
    BFloat16 low, step;
  };

  /// An integer in the order of the floats, and back again.
  HPCGNN_INLINE static std::int32_t ordered(std::int32_t bits) {
    return bits ^ ((bits >> 31) & 0x7fffffff);
  }

  /// The bfloat16 next to a finite value away from zero, or itself.
  HPCGNN_INLINE static BFloat16 away_from_zero(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return {static_cast<std::uint16_t>((bits + 0xffffu) >> 16)};
  }

  HPCGNN_INLINE static BFloat16 at_most(float value) {
    if (value < 0) return away_from_zero(value);
    return {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16)};
  }

  HPCGNN_INLINE static Grid grid_of(const S* source, std::int64_t width, float last_level) {
    std::int32_t least = std::numeric_limits<std::int32_t>::max();
    std::int32_t most = std::numeric_limits<std::int32_t>::min();
    for (std::int64_t c = 0; c < width; ++c) {
      const std::int32_t place =
          ordered(std::bit_cast<std::int32_t>(half::widen<float>(source[c])));
      least = std::min(least, place);
      most = std::max(most, place);
    }
    // Beyond the infinities lie the NaNs.
    const std::int32_t infinity = std::bit_cast<std::int32_t>(0x7f800000u);
    if (most >= infinity || least <= ordered(std::bit_cast<std::int32_t>(0xff800000u)))
      return {{kNaN}, {kNaN}};
    const BFloat16 low = at_most(std::bit_cast<float>(ordered(least)));
    const float span = std::bit_cast<float>(ordered(most)) - half::to_float(low);
    if (!(span < std::numeric_limits<float>::infinity())) return {{kNaN}, {kNaN}};
    if (span == 0) return {low, {0}};
    return {low, away_from_zero(std::max(span / last_level, kSmallestStep))};
  }

  /// The level of a value from 16 random bits, in fixed point with 16 bits behind the point.
  HPCGNN_INLINE static std::uint32_t level(S value, float low, float scale, std::uint32_t last,
                                           std::uint32_t random) {
    const auto fixed = static_cast<std::int32_t>((half::widen<float>(value) - low) * scale);
    return (static_cast<std::uint32_t>(
                std::min<std::int32_t>(fixed, static_cast<std::int32_t>(last << 16))) +
            random) >>
           16;
  }

  /// 32 random bits of a column; constants of a low-bias finaliser.
  HPCGNN_INLINE static std::uint32_t random_of(std::uint64_t stream, std::int64_t column) {
    std::uint32_t bits =
        static_cast<std::uint32_t>(column) * 0x9e3779b9u + static_cast<std::uint32_t>(stream);
    bits = (bits ^ (bits >> 16)) * 0x21f0aaadu;
    bits = (bits ^ (bits >> 15)) * 0x735a2d97u + static_cast<std::uint32_t>(stream >> 32);
    return bits ^ (bits >> 15);
  }

  static void quantise(const QuantisedArguments& a, std::int64_t first, std::int64_t last) {
    const std::int64_t row_bytes = quantised_bytes(a.width, a.bits);
    const std::int64_t below = (a.width + 1) / 2, above = a.width - below;
    const std::uint32_t last_level = (1u << a.bits) - 1;
    for (std::int64_t i = first; i < last; ++i) {
      const S* const source = static_cast<const S*>(a.source) + i * a.width;
      std::uint8_t* const out = static_cast<std::uint8_t*>(a.out) + i * row_bytes;
      const Grid grid = grid_of(source, a.width, static_cast<float>(last_level));
      std::memcpy(out, &grid, sizeof grid);
      const float low = half::to_float(grid.low), step = half::to_float(grid.step);
      std::uint8_t* const levels = out + sizeof grid;
      if (!(step > 0)) {
        std::memset(levels, 0, static_cast<std::size_t>(row_bytes) - sizeof grid);
        continue;
      }
      const float scale = 65536.0f / step;
      const std::uint64_t stream = mix_bits(row_stream(a.key, a.row_ids[i]));
      // A word serves an element of the first half of the row and one of the second.
      const S* const upper = source + below;
      if (a.bits == 8) {
        for (std::int64_t c = 0; c < above; ++c) {
          const std::uint32_t random = random_of(stream, c);
          levels[c] =
              static_cast<std::uint8_t>(level(source[c], low, scale, last_level, random & 0xffffu));
          levels[below + c] =
              static_cast<std::uint8_t>(level(upper[c], low, scale, last_level, random >> 16));
        }
      } else {
        for (std::int64_t c = 0; c < above; ++c) {
          const std::uint32_t random = random_of(stream, c);
          levels[c] =
              static_cast<std::uint8_t>(level(source[c], low, scale, last_level, random & 0xffffu) |
                                        level(upper[c], low, scale, last_level, random >> 16) << 4);
        }
      }
      if (below > above)
        levels[above] = static_cast<std::uint8_t>(
            level(source[above], low, scale, last_level, random_of(stream, above) & 0xffffu));
    }
  }

  static void dequantise(const QuantisedArguments& a, std::int64_t first, std::int64_t last) {
    const std::int64_t row_bytes = quantised_bytes(a.width, a.bits);
    const std::int64_t below = (a.width + 1) / 2, above = a.width - below;
    for (std::int64_t i = first; i < last; ++i) {
      const std::uint8_t* const source = static_cast<const std::uint8_t*>(a.source) + i * row_bytes;
      S* const out = static_cast<S*>(a.out) + i * a.width;
      Grid grid;
      std::memcpy(&grid, source, sizeof grid);
      const float low = half::to_float(grid.low), step = half::to_float(grid.step);
      const std::uint8_t* const levels = source + sizeof grid;
      if (a.bits == 8) {
        for (std::int64_t c = 0; c < a.width; ++c)
          half::narrow(low + step * static_cast<float>(levels[c]), out[c]);
        continue;
      }
      for (std::int64_t c = 0; c < below; ++c)
        half::narrow(low + step * static_cast<float>(levels[c] & 15), out[c]);
      for (std::int64_t c = 0; c < above; ++c)
        half::narrow(low + step * static_cast<float>(levels[c] >> 4), out[below + c]);
    }
  }
};

template <class F32>
constexpr QuantisedTable make_quantised_table() {
  QuantisedTable table{};
  const auto set = [&]<class S>(Storage storage) {
    table.quantise[static_cast<int>(storage)] = QuantisedKernels<F32, S>::quantise;
    table.dequantise[static_cast<int>(storage)] = QuantisedKernels<F32, S>::dequantise;
  };
  set.template operator()<float>(Storage::kFloat32);
  set.template operator()<BFloat16>(Storage::kBFloat16);
  return table;
}

}  // namespace hpcgnn::kernels
