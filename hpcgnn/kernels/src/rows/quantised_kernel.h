/// Quantised rows, templates over the SIMD types; included once per instruction set.
///
/// Plain loops over integers, which compilers vectorise without permission to reorder float sums.
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
  /// Smaller steps would have no finite reciprocal.
  static constexpr float kSmallestStep = 0x1p-100f;

  /// The levels of a row: the lowest and the step, and both in the form of its head.
  struct Grid {
    float low, step;
    std::uint32_t head;
  };

  HPCGNN_INLINE static Grid pair_of(BFloat16 low, BFloat16 step) {
    return {half::to_float(low), half::to_float(step),
            std::uint32_t{low.bits} | std::uint32_t{step.bits} << 16};
  }

  /// The grid of a step of 4 significant bits, in 11 bits, and low in eighths of a step below 0.
  HPCGNN_INLINE static Grid near_zero(std::uint32_t step, std::uint32_t eighths) {
    const auto value = std::bit_cast<float>(step << 20);
    return {-0.125f * static_cast<float>(eighths) * value, value, step << 5 | eighths};
  }

  HPCGNN_INLINE static Grid grid_in(const std::uint8_t* row, int bits) {
    if (bits == 2) {
      std::uint16_t head;
      std::memcpy(&head, row, sizeof head);
      return near_zero(head >> 5, head & 31);
    }
    BFloat16 head[2];
    std::memcpy(head, row, sizeof head);
    return pair_of(head[0], head[1]);
  }

  /// An integer that is ordered as the float with these bits; its own inverse.
  HPCGNN_INLINE static std::int32_t ordered(std::int32_t bits) {
    return bits ^ ((bits >> 31) & 0x7fffffff);
  }

  /// The nearest bfloat16 that is not closer to zero than a finite value.
  HPCGNN_INLINE static BFloat16 away_from_zero(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return {static_cast<std::uint16_t>((bits + 0xffffu) >> 16)};
  }

  HPCGNN_INLINE static BFloat16 at_most(float value) {
    if (value < 0) return away_from_zero(value);
    return {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16)};
  }

  /// The levels of `bits` bits that span `least` to `most`; NaN if these are not finite.
  HPCGNN_INLINE static Grid grid_of(float least, float most, int bits) {
    const float last_level = static_cast<float>((1u << bits) - 1);
    const float infinity = std::numeric_limits<float>::infinity();
    if (bits == 2) {
      least = std::min(least, 0.0f), most = std::max(most, 0.0f);
      const float span = most - least;
      if (!(span < infinity)) return near_zero(kNaN >> 4, 0);
      if (span == 0) return near_zero(0, 0);
      const float wanted = std::max(span / last_level, kSmallestStep);
      // Rounded up to 4 bits; one step more if rounding low to eighths of a step needs the span.
      for (std::uint32_t step = (std::bit_cast<std::uint32_t>(wanted) + 0xfffffu) >> 20;; ++step) {
        const float value = std::bit_cast<float>(step << 20);
        if (!(value < infinity)) return near_zero(kNaN >> 4, 0);
        auto eighths = static_cast<std::uint32_t>(-least / value * 8);
        while (0.125f * static_cast<float>(eighths) * value < -least) ++eighths;
        const Grid grid = near_zero(step, eighths);
        if (most <= grid.low + last_level * value) return grid;
      }
    }
    const BFloat16 low = at_most(least);
    const float span = most - half::to_float(low);
    if (!(span < infinity)) return pair_of({kNaN}, {kNaN});
    if (span == 0) return pair_of(low, {0});
    return pair_of(low, away_from_zero(std::max(span / last_level, kSmallestStep)));
  }

  HPCGNN_INLINE static Grid grid_of(const S* source, std::int64_t width, int bits) {
    std::int32_t least = std::numeric_limits<std::int32_t>::max();
    std::int32_t most = std::numeric_limits<std::int32_t>::min();
    for (std::int64_t c = 0; c < width; ++c) {
      const std::int32_t place =
          ordered(std::bit_cast<std::int32_t>(half::widen<float>(source[c])));
      least = std::min(least, place);
      most = std::max(most, place);
    }
    // In this order, NaNs are beyond the infinities.
    const std::int32_t infinity = std::bit_cast<std::int32_t>(0x7f800000u);
    if (most >= infinity || least <= ordered(std::bit_cast<std::int32_t>(0xff800000u)))
      return grid_of(0, std::numeric_limits<float>::infinity(), bits);
    return grid_of(std::bit_cast<float>(ordered(least)), std::bit_cast<float>(ordered(most)), bits);
  }

  /// The level of a value, rounded by 16 random bits, in fixed point with 16 fractional bits.
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

  /// Pack elements that share a head.
  HPCGNN_INLINE static void quantise(const S* source, std::int64_t width, int bits,
                                     std::uint64_t stream, std::uint8_t* out) {
    const std::int64_t below = (width + 1) / 2, above = width - below;
    const std::uint32_t last_level = (1u << bits) - 1;
    const Grid grid = grid_of(source, width, bits);
    std::memcpy(out, &grid.head, 2);
    if (bits > 2) std::memcpy(out, &grid.head, 4);
    std::uint8_t* const levels = out + head_bytes(bits);
    if (!(grid.step > 0)) {
      std::memset(levels, 0, static_cast<std::size_t>((width * bits + 7) / 8));
      return;
    }
    const float low = grid.low, scale = 65536.0f / grid.step;
    // One word is for an element of the first half of the row and one of the second.
    const S* const upper = source + below;
    const auto level_below = [=](std::int64_t c, std::uint32_t random) {
      return level(source[c], low, scale, last_level, random & 0xffffu);
    };
    const auto levels_of = [=](std::int64_t c) {
      const std::uint32_t random = random_of(stream, c);
      return level_below(c, random) | level(upper[c], low, scale, last_level, random >> 16) << 4;
    };
    if (bits == 8) {
      for (std::int64_t c = 0; c < above; ++c) {
        const std::uint32_t random = random_of(stream, c);
        levels[c] = static_cast<std::uint8_t>(level_below(c, random));
        levels[below + c] =
            static_cast<std::uint8_t>(level(upper[c], low, scale, last_level, random >> 16));
      }
      if (below > above)
        levels[above] = static_cast<std::uint8_t>(level_below(above, random_of(stream, above)));
      return;
    }
    // The last element of the first half may have no counterpart.
    const auto levels_at = [=](std::int64_t c) {
      return c < above ? levels_of(c) : level_below(c, random_of(stream, c));
    };
    if (bits == 4) {
      for (std::int64_t c = 0; c < above; ++c) levels[c] = static_cast<std::uint8_t>(levels_of(c));
      if (below > above) levels[above] = static_cast<std::uint8_t>(levels_at(above));
      return;
    }
    const std::int64_t quarter = (below + 1) / 2;
    const std::int64_t complete = std::max<std::int64_t>(above - quarter, 0);
    for (std::int64_t c = 0; c < complete; ++c)
      levels[c] = static_cast<std::uint8_t>(levels_of(c) | levels_of(quarter + c) << 2);
    for (std::int64_t c = complete; c < quarter; ++c)
      levels[c] = static_cast<std::uint8_t>(
          levels_at(c) | (quarter + c < below ? levels_at(quarter + c) << 2 : 0u));
  }

  HPCGNN_INLINE static void dequantise(const std::uint8_t* source, std::int64_t width, int bits,
                                       std::uint64_t stream, S* out) {
    const std::int64_t below = (width + 1) / 2, above = width - below;
    const Grid grid = grid_in(source, bits);
    const float low = grid.low, step = grid.step;
    const std::uint8_t* const levels = source + head_bytes(bits);
    const auto write = [=]<int kShift, std::uint32_t kMask>(std::int64_t start,
                                                            std::int64_t count) {
      for (std::int64_t c = 0; c < count; ++c)
        half::narrow(low + step * static_cast<float>((levels[c] >> kShift) & kMask),
                     out[start + c]);
    };
    if (bits == 8) return write.template operator()<0, 255>(0, width);
    if (bits == 4) {
      write.template operator()<0, 15>(0, below);
      return write.template operator()<4, 15>(below, above);
    }
    const std::int64_t quarter = (below + 1) / 2;
    if (!(low < 0)) {
      write.template operator()<0, 3>(0, quarter);
      write.template operator()<2, 3>(quarter, below - quarter);
      write.template operator()<4, 3>(below, std::min(quarter, above));
      return write.template operator()<6, 3>(below + quarter,
                                             std::max<std::int64_t>(above - quarter, 0));
    }
    const auto value = [=](std::uint32_t level, std::uint32_t random) {
      return low + step * (static_cast<float>(level & 3) +
                           (0.5f - 0x1p-16f * static_cast<float>(random)));
    };
    const auto write_dithered = [=]<int kShift>(std::int64_t start, std::int64_t lower,
                                                std::int64_t upper) {
      for (std::int64_t c = 0; c < upper; ++c) {
        const std::uint32_t random = random_of(stream, start + c);
        half::narrow(value(levels[c] >> kShift, random & 0xffffu), out[start + c]);
        half::narrow(value(levels[c] >> (kShift + 4), random >> 16), out[below + start + c]);
      }
      for (std::int64_t c = upper; c < lower; ++c)
        half::narrow(value(levels[c] >> kShift, random_of(stream, start + c) & 0xffffu),
                     out[start + c]);
    };
    write_dithered.template operator()<0>(0, quarter, std::min(quarter, above));
    write_dithered.template operator()<2>(quarter, below - quarter,
                                          std::max<std::int64_t>(above - quarter, 0));
  }

  /// Call `visit(start, width, bits, packed)` for all parts of a row that have their own heads.
  template <class Visit>
  HPCGNN_INLINE static void for_parts(const QuantisedArguments& a, Visit&& visit) {
    if (a.bits != 2) return visit(std::int64_t{0}, a.width, a.bits, std::int64_t{0});
    constexpr std::int64_t kPartBytes = quantised_bytes(kPartWidth, 2);
    std::int64_t start = 0, packed = 0;
    // These have a width that is known to the compiler.
    for (; start + kPartWidth <= a.width; start += kPartWidth, packed += kPartBytes)
      visit(start, kPartWidth, 2, packed);
    if (start < a.width) visit(start, a.width - start, 2, packed);
  }

  static void quantise(const QuantisedArguments& a, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const S* const source = static_cast<const S*>(a.source) + i * a.pitch;
      std::uint8_t* const out = static_cast<std::uint8_t*>(a.out) + i * a.packed_pitch;
      std::uint64_t stream = mix_bits(row_stream(a.key, a.row_ids[i]));
      for_parts(a, [&](std::int64_t start, std::int64_t width, int bits, std::int64_t packed)
                       __attribute__((always_inline)) {
                         quantise(source + start, width, bits, stream, out + packed);
                         stream = mix_bits(stream);
                       });
    }
  }

  static void dequantise(const QuantisedArguments& a, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::uint8_t* const source =
          static_cast<const std::uint8_t*>(a.source) + i * a.packed_pitch;
      S* const out = static_cast<S*>(a.out) + i * a.pitch;
      std::uint64_t stream = mix_bits(row_stream(a.key, a.row_ids[i]));
      for_parts(a, [&](std::int64_t start, std::int64_t width, int bits, std::int64_t packed)
                       __attribute__((always_inline)) {
                         dequantise(source + packed, width, bits, stream, out + start);
                         stream = mix_bits(stream);
                       });
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
