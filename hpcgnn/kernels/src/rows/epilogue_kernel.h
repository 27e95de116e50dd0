/// The end of a layer, templates over the SIMD types; included once per instruction set.
#pragma once

#include "random_bits.h"
#include "rows/epilogue.h"
#include "simd/storages.h"

namespace hpcgnn::kernels {

template <class V, class S>
struct EpilogueKernels {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;

  /// The factors 0 or `scale` of the kLanes elements from column `column` of a row on.
  HPCGNN_INLINE static Reg factors(std::uint64_t stream, std::int64_t column,
                                   std::uint64_t threshold, Scalar scale) {
    // An element has half a word, even ones the lower half: the order of a little-endian machine.
    constexpr int kWords = V::kLanes / 2;
    std::uint64_t words[kWords];
    std::uint32_t bits[V::kLanes];
    Scalar chosen[V::kLanes];
    for (int w = 0; w < kWords; ++w)
      words[w] = mix_bits(stream +
                          (static_cast<std::uint64_t>(column / 2) + static_cast<std::uint64_t>(w)) *
                              kGolden);
    for (int w = 0; w < kWords; ++w) {
      bits[2 * w] = static_cast<std::uint32_t>(words[w]);
      bits[2 * w + 1] = static_cast<std::uint32_t>(words[w] >> 32);
    }
    for (int lane = 0; lane < V::kLanes; ++lane)
      chosen[lane] = bits[lane] >= threshold ? scale : Scalar(0);
    return V::load(chosen);
  }

  static void finish(const EpilogueArguments& a, std::int64_t first, std::int64_t last) {
    if (a.row_ids == nullptr && a.width > 0 && a.width <= kRepeated)
      finish_across(a, first * a.width, last * a.width);
    else
      finish_each(a, first, last);
  }

  static void finish_each(const EpilogueArguments& a, std::int64_t first, std::int64_t last) {
    const Scalar* const bias = static_cast<const Scalar*>(a.bias);
    const std::uint64_t threshold = drop_threshold(a.p);
    const Scalar scale = a.p < 1.0 ? static_cast<Scalar>(1.0 / (1.0 - a.p)) : Scalar(0);
    for (std::int64_t i = first; i < last; ++i) {
      const S* const source = static_cast<const S*>(a.source) + i * a.width;
      S* const out = static_cast<S*>(a.out) + i * a.width;
      const std::uint64_t stream =
          a.row_ids == nullptr ? 0 : mix_bits(row_stream(a.key, a.row_ids[i]));
      for (std::int64_t c = 0; c < a.width; c += V::kLanes) {
        const bool whole = c + V::kLanes <= a.width;
        const auto tail = V::mask(whole ? V::kLanes : static_cast<int>(a.width - c));
        Reg value = whole ? V::load(source + c) : V::load(source + c, tail);
        if (bias != nullptr)
          value = V::add(value, whole ? V::load(bias + c) : V::load(bias + c, tail));
        // In this order of arguments NaN stays NaN.
        if (a.rectify) value = V::max(V::zero(), value);
        if (a.row_ids != nullptr) {
          const Reg factor = factors(stream, c, threshold, scale);
          // Not just a product: infinity times zero is NaN.
          value = V::choose_less(V::zero(), factor, V::mul(value, factor), V::zero());
        }
        if (whole)
          V::store(out + c, value);
        else
          V::store(out + c, value, tail);
      }
    }
  }

  /// Elements [first, last) without dropout, across the ends of rows: the partial store that ends a
  /// row would delay the load of the next, and short rows are loops of one or two rounds.
  static void finish_across(const EpilogueArguments& a, std::int64_t first, std::int64_t last) {
    const Scalar* const bias = static_cast<const Scalar*>(a.bias);
    const S* const source = static_cast<const S*>(a.source);
    S* const out = static_cast<S*>(a.out);
    Scalar repeated[kRepeated + V::kLanes];
    for (std::int64_t c = 0; bias != nullptr && c < a.width + V::kLanes; ++c)
      repeated[c] = bias[c % a.width];
    const std::int64_t step = V::kLanes % a.width;
    std::int64_t column = 0;
    for (std::int64_t i = first; i < last; i += V::kLanes) {
      const bool whole = i + V::kLanes <= last;
      const auto tail = V::mask(whole ? V::kLanes : static_cast<int>(last - i));
      Reg value = whole ? V::load(source + i) : V::load(source + i, tail);
      if (bias != nullptr) value = V::add(value, V::load(repeated + column));
      if (a.rectify) value = V::max(V::zero(), value);
      if (whole)
        V::store(out + i, value);
      else
        V::store(out + i, value, tail);
      column += step;
      if (column >= a.width) column -= a.width;
    }
  }

  static void gradient(const EpilogueGradient& a, std::int64_t first, std::int64_t last,
                       void* sums_of_rows) {
    const Reg scale = V::broadcast(static_cast<Scalar>(a.scale));
    Scalar* const sums = static_cast<Scalar*>(sums_of_rows);
    for (std::int64_t c = 0; c < a.width; c += kSummed * V::kLanes) {
      const std::int64_t left = (a.width - c + V::kLanes - 1) / V::kLanes;
      const Columns columns{a, first, last, c, scale, sums};
      if (left >= kSummed)
        sum_columns<kSummed>(columns);
      else if (left == 3)
        sum_columns<3>(columns);
      else if (left == 2)
        sum_columns<2>(columns);
      else
        sum_columns<1>(columns);
    }
  }

 private:
  static constexpr int kSummed = 4;
  static constexpr std::int64_t kRepeated = 256;

  /// Some columns of some rows, from `column` on.
  struct Columns {
    const EpilogueGradient& a;
    std::int64_t first, last, column;
    Reg scale;
    Scalar* sums;
  };

  /// The gradient in kCount registers of each row, whose sums stay in registers, since reading back
  /// recent stores is slow. The last register may be partial.
  template <int kCount>
  static void sum_columns(const Columns& p) {
    const S* const source = static_cast<const S*>(p.a.gradient) + p.column;
    const S* const result = p.a.result ? static_cast<const S*>(p.a.result) + p.column : nullptr;
    S* const out = p.a.out ? static_cast<S*>(p.a.out) + p.column : nullptr;
    const std::int64_t rest = p.a.width - p.column - (kCount - 1) * V::kLanes;
    const bool whole = rest >= V::kLanes;
    const auto tail = V::mask(whole ? V::kLanes : static_cast<int>(rest));
    const auto load = [&](const auto* from, int k) {
      return whole || k < kCount - 1 ? V::load(from) : V::load(from, tail);
    };
    const auto store = [&](auto* to, Reg value, int k) {
      if (whole || k < kCount - 1)
        V::store(to, value);
      else
        V::store(to, value, tail);
    };
    Reg sum[kCount];
    for (Reg& each : sum) each = V::zero();
    for (std::int64_t i = p.first * p.a.width; i < p.last * p.a.width; i += p.a.width)
      for (int k = 0; k < kCount; ++k) {
        const std::int64_t at = i + k * V::kLanes;
        Reg value = V::mul(p.scale, load(source + at, k));
        if (result != nullptr)
          value = V::choose_less(V::zero(), load(result + at, k), value, V::zero());
        if (out != nullptr) store(out + at, value, k);
        sum[k] = V::add(sum[k], value);
      }
    if (p.sums == nullptr) return;
    for (int k = 0; k < kCount; ++k) store(p.sums + p.column + k * V::kLanes, sum[k], k);
  }
};

template <class F32, class F64>
constexpr EpilogueTable make_epilogue_table() {
  EpilogueTable table{};
  const auto set = [&]<class V, class S>(Storage storage) {
    table.finish[static_cast<int>(storage)] = EpilogueKernels<V, S>::finish;
    table.gradient[static_cast<int>(storage)] = EpilogueKernels<V, S>::gradient;
  };
  for_storages<F32, F64>(set);
  return table;
}

}  // namespace hpcgnn::kernels
