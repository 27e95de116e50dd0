/// The kernels of scores that are inner products (transformers), templates over the SIMD types;
/// included once per instruction set.
#pragma once

#include "attention/walks_kernel.h"

namespace hpcgnn::kernels {

/// <key, target> of each head; see EdgeWalks.
template <class V>
struct ProductForm {
  using Scalar = typename V::Scalar;

  const Scalar* unused;
  std::int64_t first;
  Scalar slope;

  template <int kRegs, bool kTail, class X, class Fixed>
  HPCGNN_INLINE void logits(const BatchRows<X>& rows, const Fixed* fixed, Scalar* dots,
                            std::int64_t column, int tail) const {
    inner_products<V, X, Fixed, kRegs, kTail>(rows, fixed, dots, column, tail);
  }

  template <int kRegs, bool kTail, class X>
  HPCGNN_INLINE void row_gradient(const BatchRows<X>& keys, const Scalar*, const Scalar* dots,
                                  Scalar* dtarget, Scalar*, std::int64_t column, int tail) const {
    weighted_sum<V, X, kRegs, kTail>(keys, dots, 1, dtarget, column, tail);
  }

  template <int kRegs, bool kTail, class X>
  HPCGNN_INLINE void key_gradient(const BatchRows<Scalar>& targets, const X*, const Scalar* dots,
                                  Scalar* dkey, std::int64_t column, int tail) const {
    weighted_sum<V, Scalar, kRegs, kTail>(targets, dots, 1, dkey, column, tail);
  }

  /// Keys and, behind them, values of a head; see EdgeWalks.
  HPCGNN_INLINE void add_rounded(const BatchRows<Scalar>& targets, const BatchRows<Scalar>& grads,
                                 const Scalar*, const typename Softmax<V>::Edges& edges,
                                 std::int64_t width, const RoundedSums& sums) const {
    for (std::int64_t e = 0; e < targets.count; ++e) {
      const auto add = [&](const BatchRows<Scalar>& rows, double factor, std::int64_t column) {
        const Scalar* const row = rows.data + rows.index[e] * rows.pitch;
        sums.add(column, width, [&](std::int64_t c) { return factor * row[c]; });
      };
      add(targets, edges.dots.at[e], 2 * first);
      add(grads, edges.kept.at[e], 2 * first + width);
    }
  }
};

template <class F32, class F64>
constexpr ProductTable make_table() {
  return make_walks<ProductTable, F32, F64, ProductForm>();
}

}  // namespace hpcgnn::kernels
