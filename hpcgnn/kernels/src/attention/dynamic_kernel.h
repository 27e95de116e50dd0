/// The kernels of dynamic scores (GATv2), templates over the SIMD types; included once per
/// instruction set.
///
/// A batch of rows is read from memory for its logits and again, from the level-1 cache, for what
/// the softmax of the logits weighs.
#pragma once

#include "attention/columns.h"
#include "attention/problem.h"
#include "attention/softmax.h"

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

template <class V, class X>
struct DynamicAttention {
  using Scalar = typename V::Scalar;
  using Edges = typename Softmax<V>::Edges;

  /// A batch of edges of one row (or column) of one head.
  struct Span {
    std::int64_t line, head, first, count;
    std::int64_t column;  ///< the first one of the head
  };

  /// Calls body(span, cut) for the batches of a task, all heads of one before the next.
  template <class Body>
  HPCGNN_INLINE static void for_batches(const AttentionBlock& b, std::int64_t num_lines,
                                        const AttentionTask& task, const Body& body) {
    const std::int64_t longest = cached_batch<V, Scalar>(b.head_width);
    for (std::int64_t i = task.first_line; i < num_lines && b.indptr[i] < task.last_edge; ++i) {
      const bool cut = b.indptr[i] < task.first_edge;
      const std::int64_t begin = cut ? task.first_edge : b.indptr[i];
      const std::int64_t end = b.indptr[i + 1] < task.last_edge ? b.indptr[i + 1] : task.last_edge;
      for (std::int64_t first = begin; first < end; first += longest) {
        const std::int64_t count = end - first < longest ? end - first : longest;
        for (std::int64_t head = task.first_head; head < task.last_head; ++head)
          body(Span{i, head, first, count, head * b.head_width}, cut);
      }
    }
  }

  HPCGNN_INLINE static const Scalar* vector_of(const AttentionProblem& p, const Span& s) {
    return static_cast<const Scalar*>(p.source) + s.column;
  }
  HPCGNN_INLINE static BatchRows<X> z_rows(const AttentionBlock& b, const Span& s) {
    return {static_cast<const X*>(b.values) + s.column, b.num_heads * b.head_width,
            b.indices + s.first, s.count, b.num_nonzeros - s.first};
  }
  template <class T>
  HPCGNN_INLINE static BatchRows<T> cached(BatchRows<T> rows) {
    rows.known = 0;
    return rows;
  }

  /// edge_name of the edges of a batch of a row.
  HPCGNN_INLINE static auto names_of_row(const AttentionBlock& b, const Span& s) {
    return [&b, s](const std::uint64_t* streams, std::int64_t e) {
      return edge_name(streams[s.line], b.column_ids[b.indices[s.first + e]]);
    };
  }

  static void forward(const AttentionProblem& p, const AttentionTask& task,
                      const AttentionState& state, const AttentionState& carry) {
    const AttentionBlock& b = *p.block;
    const Scalar slope = static_cast<Scalar>(b.slope);
    for_batches(b, b.num_rows, task, [&](const Span& s, bool cut) {
      const AttentionState& into = cut ? carry : state;
      const std::int64_t row = b.rows ? b.rows[s.line] : s.line;
      const std::int64_t at = (cut ? 0 : row) * b.num_heads + s.head;
      const Scalar* const target =
          static_cast<const Scalar*>(b.target) + (row * b.num_heads + s.head) * b.head_width;
      const BatchRows<X> z = z_rows(b, s);
      typename Softmax<V>::Batch weights;
      for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
        rectified_products<V, X, Scalar, kRegs, kTail>(z, target, vector_of(p, s), slope,
                                                       weights.at, column, tail);
      });
      const auto name = names_of_row(b, s);
      Softmax<V>::drop_edges(p, s.count, name, Softmax<V>::kNone, weights);
      const Scalar scale = Softmax<V>::soften(weights, s.count, static_cast<Scalar*>(into.top)[at],
                                              static_cast<Scalar*>(into.total)[at]);
      Softmax<V>::drop_weights(p, s.head, s.count, name, weights);
      Scalar* const out = static_cast<Scalar*>(into.out) + at * b.head_width;
      for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
        weighted_sum<V, X, kRegs, kTail>(cached(z), weights.at, scale, out, column, tail);
      });
    });
  }

  /// exp(e - inf) is 0 where all edges of a row were left out, and exp(e + inf) is not.
  HPCGNN_INLINE static Scalar finite_lse(Scalar lse) {
    return lse == Softmax<V>::kNone ? -Softmax<V>::kNone : lse;
  }

  static void backward_rows(const AttentionProblem& p, const AttentionTask& task,
                            const DynamicGradients& g, const DynamicSums& sums) {
    const AttentionBlock& b = *p.block;
    const Scalar slope = static_cast<Scalar>(b.slope);
    for_batches(b, b.num_rows, task, [&](const Span& s, bool cut) {
      const std::int64_t at = (b.rows ? b.rows[s.line] : s.line) * b.num_heads + s.head;
      const Scalar* const target = static_cast<const Scalar*>(b.target) + at * b.head_width;
      const Scalar* const grad = static_cast<const Scalar*>(g.grad) + at * b.head_width;
      const BatchRows<X> z = z_rows(b, s);
      Edges edges;
      for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
        rectified_products<V, X, Scalar, kRegs, kTail>(z, target, vector_of(p, s), slope,
                                                       edges.logits.at, column, tail);
        inner_products<V, X, Scalar, kRegs, kTail>(cached(z), grad, edges.dots.at, column, tail);
      });
      for (std::int64_t e = 0; e < s.count; ++e) {
        edges.lse.at[e] = finite_lse(static_cast<const Scalar*>(g.lse)[at]);
        edges.delta.at[e] = static_cast<const Scalar*>(g.delta)[at];
        edges.kept.at[e] = 1;
      }
      const auto name = names_of_row(b, s);
      Softmax<V>::drop_edges(p, s.count, name, -Softmax<V>::kNone, edges.lse);
      Softmax<V>::drop_weights(p, s.head, s.count, name, edges.kept);
      Softmax<V>::differentiate(edges, s.count);
      Scalar* const dtarget = cut ? static_cast<Scalar*>(sums.carry) + s.column
                                  : static_cast<Scalar*>(g.dtarget) + at * b.head_width;
      Scalar* const dvector = static_cast<Scalar*>(sums.dvector) + s.column;
      for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
        rectifier_sums<V, X, Scalar, kRegs, kTail, true>(cached(z), target, vector_of(p, s), slope,
                                                         edges.dots.at, dtarget, dvector, column,
                                                         tail);
      });
    });
  }

  static void backward_columns(const AttentionProblem& p, const AttentionTask& task,
                               const DynamicGradients& g, const DynamicSums& sums) {
    const AttentionBlock& b = *p.block;
    const Scalar slope = static_cast<Scalar>(b.slope);
    const std::int64_t pitch = b.num_heads * b.head_width;
    StateRows finder(b, b.head_width * static_cast<std::int64_t>(sizeof(Scalar)));
    for_batches(b, b.num_columns, task, [&](const Span& s, bool cut) {
      const std::int32_t* const rows = finder.find(s.first, s.count);
      const std::int64_t known = finder.known(s.first, s.count);
      const BatchRows<Scalar> target{static_cast<const Scalar*>(b.target) + s.column, pitch, rows,
                                     s.count, known};
      const BatchRows<Scalar> grad{static_cast<const Scalar*>(g.grad) + s.column, pitch, rows,
                                   s.count, known};
      const X* const z = static_cast<const X*>(b.values) + s.line * pitch + s.column;
      Edges edges;
      for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
        rectified_products<V, Scalar, X, kRegs, kTail>(target, z, vector_of(p, s), slope,
                                                       edges.logits.at, column, tail);
        inner_products<V, Scalar, X, kRegs, kTail>(grad, z, edges.dots.at, column, tail);
      });
      for (std::int64_t e = 0; e < s.count; ++e) {
        const std::int64_t at = rows[e] * b.num_heads + s.head;
        edges.lse.at[e] = finite_lse(static_cast<const Scalar*>(g.lse)[at]);
        edges.delta.at[e] = static_cast<const Scalar*>(g.delta)[at];
        edges.kept.at[e] = 1;
      }
      const auto name = [&](const std::uint64_t* streams, std::int64_t e) {
        return edge_name(streams[b.indices[s.first + e]], b.column_ids[s.line]);
      };
      Softmax<V>::drop_edges(p, s.count, name, -Softmax<V>::kNone, edges.lse);
      Softmax<V>::drop_weights(p, s.head, s.count, name, edges.kept);
      Softmax<V>::differentiate(edges, s.count);
      Scalar* const dz =
          (cut ? static_cast<Scalar*>(sums.carry) : static_cast<Scalar*>(g.dz) + s.line * pitch) +
          s.column;
      for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
        weighted_sum<V, Scalar, kRegs, kTail>(cached(grad), edges.kept.at, 1, dz, column, tail);
        rectifier_sums<V, Scalar, X, kRegs, kTail, false>(cached(target), z, vector_of(p, s), slope,
                                                          edges.dots.at, dz, nullptr, column, tail);
      });
    });
  }
};

template <class F32, class F64>
constexpr DynamicTable make_table() {
  DynamicTable table{};
  const auto set = [&]<class V, class X>(Storage storage) {
    using Kernels = DynamicAttention<V, X>;
    table.kernels[static_cast<int>(storage)] = {Kernels::forward, Kernels::backward_rows,
                                                Kernels::backward_columns};
  };
  using enum Storage;
  set.template operator()<F32, float>(kFloat32);
  set.template operator()<F64, double>(kFloat64);
  set.template operator()<F32, BFloat16>(kBFloat16);
  set.template operator()<F32, Float16>(kFloat16);
  return table;
}

}  // namespace hpcgnn::kernels
