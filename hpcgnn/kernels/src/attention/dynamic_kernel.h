/// The kernels of dynamic scores (GATv2), templates over the SIMD types; included once per
/// instruction set.
#pragma once

#include "attention/walks_kernel.h"

namespace hpcgnn::kernels {

/// dots[e] (+)= <factor, L(row e + fixed)>, overwriting in the first block of columns.
template <class V, class X, class Fixed, int kRegs, bool kTail>
void rectified_products(const BatchRows<X>& batch, const Fixed* fixed,
                        const typename V::Scalar* factor, typename V::Scalar slope,
                        typename V::Scalar* dots, std::int64_t column, int tail_lanes) {
  using Reg = typename V::Reg;
  constexpr std::int64_t kBytes = std::int64_t{kRegs} * V::kLanes * sizeof(X);
  constexpr std::int64_t kDistance = prefetch_distance(kBytes);
  const auto tail = V::mask(tail_lanes);
  const BatchRows<X> b = batch;
  const Reg slopes = V::broadcast(slope);
  Reg factors[kRegs], other[kRegs];
  load_columns<V, kRegs, kTail>(factor + column, tail, factors);
  load_columns<V, kRegs, kTail>(fixed + column, tail, other);
  const bool fetching = b.known >= b.count + kDistance;
  for (std::int64_t e = 0; e < b.count; ++e) {
    if (fetching) b.prefetch(e + kDistance, column, (kBytes + 63) / 64);
    Reg row[kRegs];
    load_columns<V, kRegs, kTail>(b.data + b.index[e] * b.pitch + column, tail, row);
    Reg sum = V::zero();
    for (int r = 0; r < kRegs; ++r)
      sum = V::fma(factors[r], Softmax<V>::rectified(V::add(row[r], other[r]), slopes), sum);
    dots[e] = column == 0 ? V::sum(sum) : dots[e] + V::sum(sum);
  }
}

/// gradient += factor * (sum over e of weights[e] L'(row e + fixed)), and with kValues
/// values += sum over e of weights[e] L(row e + fixed).
template <class V, class X, class Fixed, int kRegs, bool kTail, bool kValues>
void rectifier_sums(const BatchRows<X>& batch, const Fixed* fixed, const typename V::Scalar* factor,
                    typename V::Scalar slope, const typename V::Scalar* weights,
                    typename V::Scalar* gradient, typename V::Scalar* values, std::int64_t column,
                    int tail_lanes) {
  using Reg = typename V::Reg;
  const auto tail = V::mask(tail_lanes);
  const BatchRows<X> b = batch;
  const Reg slopes = V::broadcast(slope);
  Reg other[kRegs], sum[kRegs], value[kRegs];
  load_columns<V, kRegs, kTail>(fixed + column, tail, other);
  for (Reg& reg : sum) reg = V::zero();
  for (Reg& reg : value) reg = V::zero();
  for (std::int64_t e = 0; e < b.count; ++e) {
    const Reg weight = V::broadcast(weights[e]), sloped = V::mul(weight, slopes);
    Reg row[kRegs];
    load_columns<V, kRegs, kTail>(b.data + b.index[e] * b.pitch + column, tail, row);
    for (int r = 0; r < kRegs; ++r) {
      const Reg x = V::add(row[r], other[r]);
      const Reg slope_of_x = V::choose_less(V::zero(), x, weight, sloped);
      sum[r] = V::add(sum[r], slope_of_x);
      if constexpr (kValues) value[r] = V::fma(slope_of_x, x, value[r]);
    }
  }
  Reg factors[kRegs], old[kRegs];
  load_columns<V, kRegs, kTail>(factor + column, tail, factors);
  load_columns<V, kRegs, kTail>(gradient + column, tail, old);
  for (int r = 0; r < kRegs; ++r) sum[r] = V::fma(factors[r], sum[r], old[r]);
  store_columns<V, kRegs, kTail>(gradient + column, tail, sum);
  if constexpr (kValues) {
    load_columns<V, kRegs, kTail>(values + column, tail, old);
    for (int r = 0; r < kRegs; ++r) value[r] = V::add(value[r], old[r]);
    store_columns<V, kRegs, kTail>(values + column, tail, value);
  }
}

/// <vector, L(key + target)> of each head; see EdgeWalks.
template <class V>
struct DynamicForm {
  using Scalar = typename V::Scalar;

  const Scalar* vectors;
  std::int64_t first;  ///< column of the head
  Scalar slope;

  HPCGNN_INLINE const Scalar* vector() const { return vectors + first; }

  template <int kRegs, bool kTail, class X, class Fixed>
  HPCGNN_INLINE void logits(const BatchRows<X>& rows, const Fixed* fixed, Scalar* dots,
                            std::int64_t column, int tail) const {
    rectified_products<V, X, Fixed, kRegs, kTail>(rows, fixed, vector(), slope, dots, column, tail);
  }

  template <int kRegs, bool kTail, class X>
  HPCGNN_INLINE void row_gradient(const BatchRows<X>& keys, const Scalar* target,
                                  const Scalar* dots, Scalar* dtarget, Scalar* dvectors,
                                  std::int64_t column, int tail) const {
    rectifier_sums<V, X, Scalar, kRegs, kTail, true>(keys, target, vector(), slope, dots, dtarget,
                                                     dvectors + first, column, tail);
  }

  template <int kRegs, bool kTail, class X>
  HPCGNN_INLINE void key_gradient(const BatchRows<Scalar>& targets, const X* key,
                                  const Scalar* dots, Scalar* dkey, std::int64_t column,
                                  int tail) const {
    rectifier_sums<V, Scalar, X, kRegs, kTail, false>(targets, key, vector(), slope, dots, dkey,
                                                      nullptr, column, tail);
  }

  /// Add the terms of the edges of a batch to the gradients of their key and value, each rounded.
  HPCGNN_INLINE void add_rounded(const BatchRows<Scalar>& targets, const BatchRows<Scalar>& grads,
                                 const Scalar* key, const typename Softmax<V>::Edges& edges,
                                 std::int64_t width, const RoundedSums& sums) const {
    const Scalar* const factor = vector();
    for (std::int64_t e = 0; e < targets.count; ++e) {
      const Scalar* const target = targets.data + targets.index[e] * targets.pitch;
      const Scalar* const grad = grads.data + grads.index[e] * grads.pitch;
      const Scalar through = edges.dots.at[e], sloped = through * slope;
      const double share = edges.kept.at[e];
      // The products of float32 numbers are exact in float64.
      sums.add(first, width, [&](std::int64_t c) {
        const double of_key = target[c] + key[c] > 0 ? through : sloped;
        return share * grad[c] + of_key * factor[c];
      });
    }
  }
};

template <class F32, class F64>
constexpr DynamicTable make_table() {
  return make_walks<DynamicTable, F32, F64, DynamicForm>();
}

}  // namespace hpcgnn::kernels
