/// The walks over the edges of a block that scores of whole heads share (GATv2, dot products),
/// templates over the SIMD types; included once per instruction set.
///
/// A batch of rows is read from memory for its logits and again, from the level-1 cache, for the
/// sums weighted by the softmax.
#pragma once

#include <type_traits>

#include "attention/columns.h"
#include "attention/problem.h"
#include "attention/rounding.h"
#include "attention/softmax.h"
#include "simd/storages.h"

namespace hpcgnn::kernels {

/// The forward and the backward passes of a block; `Form` defines the logits:
///
///     logits<kRegs, kTail>          of a batch of rows and one fixed row
///     row_gradient<kRegs, kTail>    adds the gradients of a target and of the vector
///     key_gradient<kRegs, kTail>    adds the gradient of a key
///     add_rounded                   adds those of a key and a value, each term rounded by itself
template <class V, class X, template <class> class FormOf>
struct EdgeWalks {
  using Scalar = typename V::Scalar;
  using Edges = typename Softmax<V>::Edges;
  using Form = FormOf<V>;

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
    const auto with_heads = [&](std::int64_t line, std::int64_t first, std::int64_t count,
                                bool cut) {
      for (std::int64_t head = task.first_head; head < task.last_head; ++head)
        body(Span{line, head, first, count, head * b.head_width}, cut);
    };
    for_pieces(b, num_lines, task, longest, with_heads);
  }

  HPCGNN_INLINE static Form form_of(const AttentionProblem& p, const Span& s) {
    return {static_cast<const Scalar*>(p.source), s.column, static_cast<Scalar>(p.block->slope)};
  }
  /// Number of parts of a head of z: a value, or a key followed by a value.
  HPCGNN_INLINE static std::int64_t parts_of(const AttentionBlock& b) { return b.keyed ? 2 : 1; }

  HPCGNN_INLINE static BatchRows<X> keys_of(const AttentionBlock& b, const Span& s) {
    return {static_cast<const X*>(b.values) + s.column * parts_of(b),
            b.num_heads * b.head_width * parts_of(b), b.indices + s.first, s.count,
            b.num_nonzeros - s.first};
  }
  template <class T>
  HPCGNN_INLINE static BatchRows<T> cached(BatchRows<T> rows) {
    rows.known = 0;
    return rows;
  }
  /// The values that belong to keys; in the cache if they are the keys themselves.
  HPCGNN_INLINE static BatchRows<X> values_of(const AttentionBlock& b, BatchRows<X> keys) {
    if (!b.keyed) return cached(keys);
    keys.data += b.head_width;
    return keys;
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
    for_batches(b, b.num_rows, task, [&](const Span& s, bool cut) {
      const AttentionState& into = cut ? carry : state;
      const std::int64_t row = b.rows ? b.rows[s.line] : s.line;
      const std::int64_t at = (cut ? 0 : row) * b.num_heads + s.head;
      const Scalar* const target =
          static_cast<const Scalar*>(b.target) + (row * b.num_heads + s.head) * b.head_width;
      const BatchRows<X> keys = keys_of(b, s), values = values_of(b, keys);
      const Form form = form_of(p, s);
      typename Softmax<V>::Batch weights;
      for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
        form.template logits<kRegs, kTail>(keys, target, weights.at, column, tail);
      });
      const auto name = names_of_row(b, s);
      Softmax<V>::drop_edges(p, s.count, name, Softmax<V>::kNone, weights);
      const Scalar scale = Softmax<V>::soften(weights, s.count, static_cast<Scalar*>(into.top)[at],
                                              static_cast<Scalar*>(into.total)[at]);
      Softmax<V>::drop_weights(p, s.head, s.count, name, weights);
      Scalar* const out = static_cast<Scalar*>(into.out) + at * b.head_width;
      for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
        weighted_sum<V, X, kRegs, kTail>(values, weights.at, scale, out, column, tail);
      });
    });
  }

  /// Where all edges of a row were left out, exp(e - inf) is 0, but exp(e + inf) is not.
  HPCGNN_INLINE static Scalar finite_lse(Scalar lse) {
    return lse == Softmax<V>::kNone ? -Softmax<V>::kNone : lse;
  }

  static void backward_rows(const AttentionProblem& p, const AttentionTask& task,
                            const DynamicGradients& g, const DynamicSums& sums) {
    const AttentionBlock& b = *p.block;
    for_batches(b, b.num_rows, task, [&](const Span& s, bool cut) {
      const std::int64_t at = (b.rows ? b.rows[s.line] : s.line) * b.num_heads + s.head;
      const Scalar* const target = static_cast<const Scalar*>(b.target) + at * b.head_width;
      const Scalar* const grad = static_cast<const Scalar*>(g.grad) + at * b.head_width;
      const BatchRows<X> keys = keys_of(b, s), values = values_of(b, keys);
      const Form form = form_of(p, s);
      Edges edges;
      for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
        form.template logits<kRegs, kTail>(keys, target, edges.logits.at, column, tail);
        inner_products<V, X, Scalar, kRegs, kTail>(values, grad, edges.dots.at, column, tail);
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
      Scalar* const dvector = sums.dvector == nullptr ? nullptr
                                                      : static_cast<Scalar*>(sums.dvector) +
                                                            s.line * sums.dvector_pitch;
      Scalar* const dtarget = cut ? static_cast<Scalar*>(sums.carry) + s.column
                                  : static_cast<Scalar*>(g.dtarget) + at * b.head_width;
      for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
        form.template row_gradient<kRegs, kTail>(cached(keys), target, edges.dots.at, dtarget,
                                                 dvector, column, tail);
      });
    });
  }

  static void backward_columns(const AttentionProblem& p, const AttentionTask& task,
                               const DynamicGradients& g, const DynamicSums& sums) {
    const AttentionBlock& b = *p.block;
    const std::int64_t pitch = b.num_heads * b.head_width;
    StateRows finder(b, b.head_width * static_cast<std::int64_t>(sizeof(Scalar)));
    for_batches(b, b.num_columns, task, [&](const Span& s, bool cut) {
      const std::int32_t* const rows = finder.find(s.first, s.count);
      const std::int64_t known = finder.known(s.first, s.count);
      const BatchRows<Scalar> target{static_cast<const Scalar*>(b.target) + s.column, pitch, rows,
                                     s.count, known};
      const BatchRows<Scalar> grad{static_cast<const Scalar*>(g.grad) + s.column, pitch, rows,
                                   s.count, known};
      const std::int64_t parts = parts_of(b);
      const std::int64_t at = (s.line * b.num_heads + s.head) * b.head_width * parts;
      const X* const key = static_cast<const X*>(b.values) + at;
      const X* const value = key + (parts - 1) * b.head_width;
      const Form form = form_of(p, s);
      Edges edges;
      for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
        form.template logits<kRegs, kTail>(target, key, edges.logits.at, column, tail);
        inner_products<V, Scalar, X, kRegs, kTail>(grad, value, edges.dots.at, column, tail);
      });
      for (std::int64_t e = 0; e < s.count; ++e) {
        const std::int64_t of_row = rows[e] * b.num_heads + s.head;
        edges.lse.at[e] = finite_lse(static_cast<const Scalar*>(g.lse)[of_row]);
        edges.delta.at[e] = static_cast<const Scalar*>(g.delta)[of_row];
        edges.kept.at[e] = 1;
      }
      const auto name = [&](const std::uint64_t* streams, std::int64_t e) {
        return edge_name(streams[b.indices[s.first + e]], b.column_ids[s.line]);
      };
      Softmax<V>::drop_edges(p, s.count, name, -Softmax<V>::kNone, edges.lse);
      Softmax<V>::drop_weights(p, s.head, s.count, name, edges.kept);
      Softmax<V>::differentiate(edges, s.count);
      if constexpr (std::is_same_v<X, Scalar>) {
        if (g.rounded.sums != nullptr) {
          form.add_rounded(target, grad, key, edges, b.head_width, sums_of_line(g.rounded, s.line));
          return;
        }
      }
      Scalar* const dkey = cut ? static_cast<Scalar*>(sums.carry) + s.column * parts
                               : static_cast<Scalar*>(g.dz) + at;
      Scalar* const dvalue = dkey + (parts - 1) * b.head_width;
      for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
        weighted_sum<V, Scalar, kRegs, kTail>(cached(grad), edges.kept.at, 1, dvalue, column, tail);
        form.template key_gradient<kRegs, kTail>(cached(target), key, edges.dots.at, dkey, column,
                                                 tail);
      });
    });
  }
};

/// The kernels of a form, by storage of z.
template <class Table, class F32, class F64, template <class> class FormOf>
constexpr Table make_walks() {
  Table table{};
  const auto set = [&]<class V, class X>(Storage storage) {
    using Walks = EdgeWalks<V, X, FormOf>;
    table.kernels[static_cast<int>(storage)] = {Walks::forward, Walks::backward_rows,
                                                Walks::backward_columns};
  };
  for_storages<F32, F64>(set);
  return table;
}

}  // namespace hpcgnn::kernels
