/// The kernels of scores that are inner products (transformers), templates over the SIMD types;
/// included once per instruction set.
#pragma once

#include "attention/walks_kernel.h"

namespace hpcgnn::kernels {

/// <key, target> of each head; see EdgeWalks.
template <class V>
struct ProductForm {
  using Scalar = typename V::Scalar;
  static constexpr bool kRounds = false;

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
};

template <class F32, class F64>
constexpr ProductTable make_table() {
  return make_walks<ProductTable, F32, F64, ProductForm>();
}

}  // namespace hpcgnn::kernels
