/// Templates over the SIMD types; included once per instruction set. The compiler vectorises loops
/// without explicit registers, with the instruction set of this unit.
#pragma once

#include <bit>

#include "exact/exact.h"

namespace hpcgnn::kernels {

HPCGNN_INLINE std::int64_t bits_of(double value) { return std::bit_cast<std::int64_t>(value); }

template <class V, class X>
struct ExactKernels {
  static constexpr int kLanes = V::kLanes;
  /// Registers of columns in a tile.
  static constexpr int kRegs = V::kSumRegisters / kTileRows;

  static void largest(const ExactRows& a, std::int64_t first, std::int64_t last, double* top) {
    const X* const x = static_cast<const X*>(a.data);
    for (std::int64_t i = first; i < last; ++i) {
      const X* const row = x + i * a.width;
      const double factor = a.factors ? a.factors[i] : 1.0;
      for (std::int64_t c = 0; c < a.width; ++c) {
        // Magnitudes are ordered as their bits, with NaNs above infinity.
        const std::int64_t bits = bits_of(row[c] * factor) & INT64_MAX, before = bits_of(top[c]);
        top[c] = std::bit_cast<double>(bits > before ? bits : before);
      }
    }
  }

  static void total(const ExactTotal& a, std::int64_t first, std::int64_t last,
                    std::int64_t* sums) {
    const X* const x = static_cast<const X*>(a.rows.data);
    const std::int64_t width = a.rows.width;
    for (std::int64_t i = first; i < last; ++i) {
      const X* const row = x + i * width;
      for (std::int64_t c = 0; c < width; ++c) {
        const double value = row[c] * a.scale[c], high = value + kRounder;
        const double low = (value - (high - kRounder)) * (1 << kLimbBits) + kRounder;
        sums[c] += bits_of(high) - bits_of(kRounder);
        sums[width + c] += bits_of(low) - bits_of(kRounder);
      }
    }
  }

  static void digits(const ExactDigits& a, std::int64_t first, std::int64_t last) {
    const X* const x = static_cast<const X*>(a.rows.data);
    const std::int64_t width = a.rows.width;
    const double more = static_cast<double>(std::int64_t{1} << a.bits);
    for (std::int64_t i = first; i < last; ++i) {
      const X* const row = x + i * width;
      std::int32_t* const out = a.out + i * width * a.digits;
      const double factor = a.rows.factors ? a.rows.factors[i] : 1.0;
      if (a.digits == 1) {
        for (std::int64_t c = 0; c < width; ++c)
          out[c] = last_bits(row[c] * factor * a.scale[c] + kRounder);
        continue;
      }
      for (std::int64_t c = 0; c < width; ++c) {
        double left = row[c] * factor * a.scale[c];
        for (int d = 0; d < a.digits; ++d) {
          const double rounded = left + kRounder;
          out[d * width + c] = last_bits(rounded);
          left = (left - (rounded - kRounder)) * more;
        }
      }
    }
  }

  static void join(const ExactJoin& a, std::int64_t first, std::int64_t last) {
    const std::int64_t width = a.rows.width;
    const double less = 1.0 / static_cast<double>(std::int64_t{1} << a.bits);
    for (std::int64_t i = first; i < last; ++i) {
      const double* const sums = a.sums + i * width * a.digits;
      X* const out = static_cast<X*>(a.out) + i * width;
      const double factor = a.rows.factors ? a.rows.factors[i] : 1.0;
      if (a.digits == 1) {
        for (std::int64_t c = 0; c < width; ++c)
          out[c] = static_cast<X>(sums[c] * a.units[c] * factor);
        continue;
      }
      for (std::int64_t c = 0; c < width; ++c) {
        double whole = sums[(a.digits - 1) * width + c] * a.units[c];
        for (int d = a.digits - 2; d >= 0; --d)
          whole = whole * less + sums[d * width + c] * a.units[c];
        out[c] = static_cast<X>(whole * factor);
      }
    }
  }

  static void contract(const ExactContract& a, std::int64_t first, std::int64_t last, double* room,
                       std::int64_t* sums) {
    const std::int64_t columns = a.left.width, width = a.right.width;
    const std::int64_t left_size = padded(columns, kTileRows) * kContractRows;
    const std::int64_t right_size = padded(width, kLanes) * kContractRows;
    double* const right = room + a.digits * left_size;
    for (; first < last; first += kContractRows) {
      const std::int64_t rows = last - first < kContractRows ? last - first : kContractRows;
      const auto taken = [&](std::int64_t size) { return Packing{first, rows, a.digits, size}; };
      pack<kTileRows, kTileRows>(a.left, a.left_scale, taken(left_size), room);
      pack<kRegs * kLanes, kLanes>(a.right, a.right_scale, taken(right_size), right);
      for (std::int64_t j = 0; j < width; j += kRegs * kLanes)
        for (std::int64_t i = 0; i < columns; i += kTileRows)
          for (int level = 0; level < a.digits; ++level)
            tiles<kRegs>(a, {room + i * rows, right + j * rows, left_size, right_size, rows, i, j},
                         level, sums + 2 * level * columns * width);
    }
  }

  static void product(const OrderedProduct& a, std::int64_t first, std::int64_t last) {
    std::int64_t i = first;
    for (; i + kTileRows <= last; i += kTileRows) product_rows<kTileRows>(a, i);
    for (; i < last; ++i) product_rows<1>(a, i);
  }

 private:
  using Reg = typename V::Reg;

  struct Tile {
    const double *left, *right;             ///< rows of kTileRows and of up to kRegs registers
    std::int64_t left_size, right_size;     ///< from one digit to the next
    std::int64_t rows, column, out_column;  ///< of the left matrix and of the right one
  };

  HPCGNN_INLINE static std::int32_t last_bits(double rounded) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(bits_of(rounded)));
  }

  HPCGNN_INLINE static std::int64_t padded(std::int64_t width, std::int64_t unit) {
    return (width + unit - 1) / unit * unit;
  }

  /// The packed rows, and the distance between their digits.
  struct Packing {
    std::int64_t first, rows;
    int digits;
    std::int64_t size;
  };

  /// Write digits in panels of columns, each panel row by row, the last one filled up.
  template <int kPanel, int kUnit>
  static void pack(const ExactRows& a, const double* scale, const Packing& p, double* out) {
    for (std::int64_t start = 0; start < a.width; start += kPanel) {
      const std::int64_t left = a.width - start;
      const std::int64_t used = left < kPanel ? left : kPanel, pitch = padded(used, kUnit);
      const X* row = static_cast<const X*>(a.data) + p.first * a.width + start;
      double* target = out + start * p.rows;
      for (std::int64_t r = 0; r < p.rows; ++r, row += a.width, target += pitch) {
        for (int d = 0; d < p.digits; ++d)
          for (std::int64_t c = used; c < pitch; ++c) target[d * p.size + c] = 0;
        for (std::int64_t c = 0; c < used; ++c) target[c] = row[c] * scale[start + c];
        for (int d = 1; d < p.digits; ++d) {
          double* const before = target + (d - 1) * p.size;
          for (std::int64_t c = 0; c < used; ++c) {
            const double digit = (before[c] + kRounder) - kRounder;
            before[p.size + c] = (before[c] - digit) * 0x1p22;
            before[c] = digit;
          }
        }
        // The last digit is rounded, too, unless each product is.
        double* const last = target + (p.digits - 1) * p.size;
        for (std::int64_t c = 0; p.digits > 1 && c < used; ++c)
          last[c] = (last[c] + kRounder) - kRounder;
      }
    }
  }

  /// Add a level of a tile to the sums; its columns take the registers that they need.
  template <int kCount>
  static void tiles(const ExactContract& a, const Tile& t, int level, std::int64_t* sums) {
    if constexpr (kCount > 1)
      if (a.right.width - t.out_column <= (kCount - 1) * kLanes)
        return tiles<kCount - 1>(a, t, level, sums);
    Reg total[kTileRows][kCount];
    // Products that are rounded down are added to 1.5 2^52, whose last bit is 1.
    const double from = a.digits == 1 ? kRounder : 0.0;
    const auto fill = [&] {
      for (auto& row : total)
        for (Reg& reg : row) reg = V::broadcast(from);
    };
    fill();
    for (int d = 0; d <= level; ++d) {
      if (level == 2 && d == 1) continue;
      multiply<kCount>(t, d, level - d, total);
    }
    add<kCount>(a, t, total, from, sums);
    if (level != 2) return;
    // Three products would need another bit, so these are added separately.
    fill();
    multiply<kCount>(t, 1, 1, total);
    add<kCount>(a, t, total, from, sums);
  }

  template <int kCount>
  HPCGNN_INLINE static void multiply(const Tile& t, int left_digit, int right_digit,
                                     Reg (&total)[kTileRows][kCount]) {
    const double* left = t.left + left_digit * t.left_size;
    const double* right = t.right + right_digit * t.right_size;
    for (std::int64_t r = 0; r < t.rows; ++r, left += kTileRows, right += kCount * kLanes) {
      Reg row[kCount];
      for (int k = 0; k < kCount; ++k) row[k] = V::load(right + k * kLanes);
      for (int i = 0; i < kTileRows; ++i) {
        const Reg value = V::broadcast(left[i]);
        for (int k = 0; k < kCount; ++k) total[i][k] = V::fma(value, row[k], total[i][k]);
      }
    }
  }

  template <int kCount>
  HPCGNN_INLINE static void add(const ExactContract& a, const Tile& t,
                                const Reg (&total)[kTileRows][kCount], double from,
                                std::int64_t* sums) {
    const std::int64_t width = a.right.width, size = a.left.width * width;
    const std::int64_t left = width - t.out_column, tall = a.left.width - t.column;
    const std::int64_t columns = left < kCount * kLanes ? left : kCount * kLanes;
    double row[kCount * kLanes];
    for (std::int64_t i = 0; i < kTileRows && i < tall; ++i) {
      for (int k = 0; k < kCount; ++k) V::store(row + k * kLanes, total[i][k]);
      std::int64_t* const upper = sums + (t.column + i) * width + t.out_column;
      for (std::int64_t c = 0; c < columns; ++c) {
        const std::int64_t whole =
            from == 0 ? static_cast<std::int64_t>(row[c]) : bits_of(row[c]) - bits_of(kRounder);
        upper[c] += whole >> kLimbBits;
        upper[size + c] += whole & ((std::int64_t{1} << kLimbBits) - 1);
      }
    }
  }

  template <int kRows>
  HPCGNN_INLINE static void product_rows(const OrderedProduct& a, std::int64_t first) {
    std::int64_t j = 0;
    for (; j + kRegs * kLanes <= a.width; j += kRegs * kLanes)
      product_columns<kRegs, kRows, false>(a, first, j);
    if (j < a.width) product_tail<kRegs, kRows>(a, first, j);
  }

  template <int kCount, int kRows>
  static void product_tail(const OrderedProduct& a, std::int64_t first, std::int64_t column) {
    if constexpr (kCount > 1)
      if (a.width - column <= (kCount - 1) * kLanes)
        return product_tail<kCount - 1, kRows>(a, first, column);
    product_columns<kCount, kRows, true>(a, first, column);
  }

  /// kCount registers of columns of kRows rows; with `kTail` the last one is partial, or full.
  template <int kCount, int kRows, bool kTail>
  static void product_columns(const OrderedProduct& a, std::int64_t first, std::int64_t column) {
    constexpr int kFull = kTail ? kCount - 1 : kCount;
    const std::int64_t depth = a.rows.width, width = a.width;
    const X* const x = static_cast<const X*>(a.rows.data) + first * depth;
    const X* matrix = static_cast<const X*>(a.matrix) + column;
    X* target = static_cast<X*>(a.out) + first * width + column;
    const auto tail = V::mask(kTail ? static_cast<int>(width - column - kFull * kLanes) : 0);
    Reg total[kRows][kCount];
    for (auto& row : total)
      for (Reg& reg : row) reg = V::zero();
    for (std::int64_t e = 0; e < depth; ++e, matrix += width) {
      Reg row[kCount];
      for (int k = 0; k < kFull; ++k) row[k] = V::load(matrix + k * kLanes);
      if constexpr (kTail) row[kFull] = V::load(matrix + kFull * kLanes, tail);
      for (int i = 0; i < kRows; ++i) {
        const Reg value = V::broadcast(x[i * depth + e]);
        for (int k = 0; k < kCount; ++k) total[i][k] = V::fma(value, row[k], total[i][k]);
      }
    }
    for (int i = 0; i < kRows; ++i, target += width) {
      if (a.accumulate) {
        for (int k = 0; k < kFull; ++k)
          total[i][k] = V::add(total[i][k], V::load(target + k * kLanes));
        if constexpr (kTail)
          total[i][kFull] = V::add(total[i][kFull], V::load(target + kFull * kLanes, tail));
      }
      for (int k = 0; k < kFull; ++k) V::store(target + k * kLanes, total[i][k]);
      if constexpr (kTail) V::store(target + kFull * kLanes, total[i][kFull], tail);
    }
  }
};

template <class F32, class F64>
constexpr ExactTable make_table() {
  ExactTable table{};
  const auto set = [&]<class V, class X>(Storage storage) {
    const int at = static_cast<int>(storage);
    table.largest[at] = ExactKernels<F64, X>::largest;
    table.total[at] = ExactKernels<F64, X>::total;
    table.contract[at] = ExactKernels<F64, X>::contract;
    table.digits[at] = ExactKernels<F64, X>::digits;
    table.join[at] = ExactKernels<F64, X>::join;
    table.product[at] = ExactKernels<V, X>::product;
  };
  set.template operator()<F32, float>(Storage::kFloat32);
  set.template operator()<F64, double>(Storage::kFloat64);
  return table;
}

}  // namespace hpcgnn::kernels
