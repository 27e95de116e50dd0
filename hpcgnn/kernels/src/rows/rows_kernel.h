/// Row conversion and scatter-add, templates over the SIMD types; included once per instruction
/// set.
#pragma once

#include "rows/dots_kernel.h"
#include "rows/epilogue_kernel.h"
#include "rows/integers_kernel.h"
#include "rows/quantised_kernel.h"
#include "rows/rows.h"
#include "rows/sigmoid_loss_kernel.h"
#include "rows/softmax_loss_kernel.h"
#include "simd/storages.h"

namespace hpcgnn::kernels {

/// out[c] = (kAdd ? out[c] : 0) + source[c] for one row.
template <class V, class S, class Out, bool kAdd>
HPCGNN_INLINE void move_row(const S* source, Out* out, std::int64_t width) {
  std::int64_t c = 0;
  for (; c + V::kLanes <= width; c += V::kLanes) {
    auto value = V::load(source + c);
    if constexpr (kAdd) value = V::add(V::load(out + c), value);
    V::store(out + c, value);
  }
  if (c < width) {
    const auto tail = V::mask(static_cast<int>(width - c));
    auto value = V::load(source + c, tail);
    if constexpr (kAdd) value = V::add(V::load(out + c, tail), value);
    V::store(out + c, value, tail);
  }
}

template <class V, class S, class Out>
struct RowKernels {
  static void convert(const RowsProblem& p, std::int64_t first, std::int64_t last) {
    const S* const source = static_cast<const S*>(p.source);
    Out* const out = static_cast<Out*>(p.out);
    for (std::int64_t i = first; i < last; ++i)
      move_row<V, S, Out, false>(source + (p.rows ? p.rows[i] : i) * p.width, out + i * p.width,
                                 p.width);
  }

  static void scatter_add(const RowsProblem& p, std::int64_t first, std::int64_t last) {
    const S* const source = static_cast<const S*>(p.source);
    Out* const out = static_cast<Out*>(p.out);
    for (std::int64_t i = 0; i < p.num_rows; ++i)
      if (p.rows[i] >= first && p.rows[i] < last)
        move_row<V, S, Out, true>(source + i * p.width, out + p.rows[i] * p.width, p.width);
  }
};

template <template <class> class Kernels, class F32, class F64, class Table>
constexpr void set_losses(Table& table) {
  const auto set = [&]<class V>(Storage storage) {
    table.loss[static_cast<int>(storage)] = Kernels<V>::loss;
  };
  set.template operator()<F32>(Storage::kFloat32);
  set.template operator()<F64>(Storage::kFloat64);
}

template <class F32, class F64>
constexpr RowsTable make_table() {
  RowsTable table{};
  const auto set = [&]<class V, class S, class Out>(Storage source, Storage out) {
    const int from = static_cast<int>(source), to = static_cast<int>(out);
    table.convert[from][to] = RowKernels<V, S, Out>::convert;
    table.scatter_add[from][to] = RowKernels<V, S, Out>::scatter_add;
  };
  for_storage_pairs<F32, F64>(set);
  table.epilogue = make_epilogue_table<F32, F64>();
  table.quantised = make_quantised_table<F32>();
  table.integers = make_integers_table<F32>();
  table.row_dots.dots[static_cast<int>(Storage::kFloat32)] = RowDotsKernels<F32>::dots;
  table.row_dots.dots[static_cast<int>(Storage::kFloat64)] = RowDotsKernels<F64>::dots;
  set_losses<SigmoidLossKernels, F32, F64>(table.sigmoid_loss);
  set_losses<SoftmaxLossKernels, F32, F64>(table.softmax_loss);
  return table;
}

}  // namespace hpcgnn::kernels
