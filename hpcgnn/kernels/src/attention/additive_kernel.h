/// The attention kernels, templates over the SIMD types; included once per instruction set.
///
/// Edges go by in batches. The logits of a batch are gathered from a small array, their maximum is
/// found and exp taken on registers full of edges; then each row of z, or of grad, is read from
/// memory once, into sums that stay in registers.
#pragma once

#include "attention/columns.h"
#include "attention/rounding.h"
#include "attention/softmax.h"
#include "simd/storages.h"

namespace hpcgnn::kernels {

/// Add the scores that edges have themselves.
template <class T>
HPCGNN_INLINE void add_edges(const AttentionBlock& b, std::int64_t head, std::int64_t first,
                             std::int64_t count, T* sums) {
  if (b.edges == nullptr) return;
  const T* const scores = static_cast<const T*>(b.edges) + first * b.num_heads + head;
  for (std::int64_t e = 0; e < count; ++e) sums[e] += scores[e * b.num_heads];
}

template <class V, class X>
struct AdditiveForward {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;
  using Batch = typename Softmax<V>::Batch;

  /// Edges of one row and head; `row` is that of the block.
  struct Edges {
    std::int64_t row, head, first, count;
    Scalar target;
  };

  HPCGNN_INLINE static void logits_of(const AttentionProblem& p, const Edges& edges,
                                      const BatchRows<X>& rows, Batch& logits) {
    const AttentionBlock& b = *p.block;
    // Memory stays busy while the softmax is computed.
    constexpr std::int64_t kLines = 2;
    const std::int64_t ahead =
        prefetch_distance(b.head_width * static_cast<std::int64_t>(sizeof(X)));
    const bool fetching = b.head_width * static_cast<std::int64_t>(sizeof(X)) >= kLines * 64 &&
                          rows.known >= edges.count + ahead;
    const Scalar* const source = static_cast<const Scalar*>(p.source) + edges.head * b.num_columns;
    const std::int32_t* const columns = b.indices + edges.first;
    for (std::int64_t e = 0; e < edges.count; ++e) {
      if (fetching) rows.prefetch(e + ahead, 0, kLines);
      logits.at[e] = source[columns[e]];
    }
    add_edges<Scalar>(b, edges.head, edges.first, edges.count, logits.at);
    const Reg target = V::broadcast(edges.target);
    const Reg slope = V::broadcast(static_cast<Scalar>(b.slope));
    const std::int64_t padded = Softmax<V>::pad(logits, edges.count, 0);
    for (std::int64_t e = 0; e < padded; e += V::kLanes)
      V::store(logits.at + e, Softmax<V>::rectified(V::add(V::load(logits.at + e), target), slope));
  }

  static void batch(const AttentionProblem& p, const Edges& edges, Scalar& top, Scalar& total,
                    Scalar* out) {
    const AttentionBlock& b = *p.block;
    const std::int32_t* const columns = b.indices + edges.first;
    const auto name = [&](const std::uint64_t* streams, std::int64_t e) {
      return edge_name(streams[edges.row], b.column_ids[columns[e]]);
    };
    const BatchRows<X> rows{static_cast<const X*>(b.values) + edges.head * b.head_width,
                            b.num_heads * b.head_width, columns, edges.count,
                            b.num_nonzeros - edges.first};
    Batch weights;
    logits_of(p, edges, rows, weights);
    Softmax<V>::drop_edges(p, edges.count, name, Softmax<V>::kNone, weights);
    const Scalar scale = Softmax<V>::soften(weights, edges.count, top, total);
    Softmax<V>::drop_weights(p, edges.head, edges.count, name, weights);
    for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
      weighted_sum<V, X, kRegs, kTail>(rows, weights.at, scale, out, column, tail);
    });
  }

  static void run(const AttentionProblem& p, const AttentionTask& task, const AttentionState& state,
                  const AttentionState& carry) {
    const AttentionBlock& b = *p.block;
    const std::int64_t longest = cached_batch<V, X>(b.head_width);
    for (std::int64_t i = task.first_line; i < b.num_rows && b.indptr[i] < task.last_edge; ++i) {
      const bool cut = b.indptr[i] < task.first_edge;
      const AttentionState& into = cut ? carry : state;
      const std::int64_t row = b.rows ? b.rows[i] : i, place = cut ? 0 : row;
      const std::int64_t begin = cut ? task.first_edge : b.indptr[i];
      const std::int64_t end = b.indptr[i + 1] < task.last_edge ? b.indptr[i + 1] : task.last_edge;
      for (std::int64_t first = begin; first < end; first += longest)
        for (std::int64_t head = task.first_head; head < task.last_head; ++head) {
          const std::int64_t at = place * b.num_heads + head;
          const Scalar target = static_cast<const Scalar*>(b.target)[row * b.num_heads + head];
          const std::int64_t count = end - first < longest ? end - first : longest;
          batch(p, {i, head, first, count, target}, static_cast<Scalar*>(into.top)[at],
                static_cast<Scalar*>(into.total)[at],
                static_cast<Scalar*>(into.out) + at * b.head_width);
        }
    }
  }
};

template <class V, class X>
struct AdditiveBackward {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;
  using Batch = typename Softmax<V>::Batch;

  // Heads of a group: kGroupBytes of 16-bit elements.
  static constexpr std::int64_t kMostHeads = 128;

  /// Edges of one column and head.
  struct Edges {
    std::int64_t column, head, first, count;
    Scalar source;
    BatchRows<Scalar> grad;
  };

  /// Turn inner products into gradients of the logits before the rectifier, and fill in the
  /// weights that grad counts with; returns the sum of the gradients.
  HPCGNN_INLINE static Scalar differentiate(const AttentionProblem& p, const Edges& edges,
                                            const TargetTerms<Scalar>* terms,
                                            typename Softmax<V>::Edges& batch) {
    const AttentionBlock& b = *p.block;
    const std::int32_t* const rows = b.indices + edges.first;
    const auto name = [&](const std::uint64_t* streams, std::int64_t e) {
      return edge_name(streams[rows[e]], b.column_ids[edges.column]);
    };
    Batch sums;
    for (std::int64_t e = 0; e < edges.count; ++e) {
      const TargetTerms<Scalar>& term = terms[rows[e]];
      sums.at[e] = term.target + edges.source;
      batch.lse.at[e] = term.lse;
      batch.delta.at[e] = term.delta;
      batch.kept.at[e] = 1;
    }
    add_edges<Scalar>(b, edges.head, edges.first, edges.count, sums.at);
    Softmax<V>::drop_edges(p, edges.count, name, -Softmax<V>::kNone, batch.lse);
    Softmax<V>::drop_weights(p, edges.head, edges.count, name, batch.kept);
    const std::int64_t padded = Softmax<V>::pad(sums, edges.count, 0);
    const Reg slope = V::broadcast(static_cast<Scalar>(b.slope));
    for (std::int64_t e = 0; e < padded; e += V::kLanes)
      V::store(batch.logits.at + e, Softmax<V>::rectified(V::load(sums.at + e), slope));
    Softmax<V>::differentiate(batch, edges.count);
    Reg sum = V::zero();
    for (std::int64_t e = 0; e < padded; e += V::kLanes) {
      const Reg outer = V::load(batch.dots.at + e);
      const Reg inner =
          V::choose_less(V::zero(), V::load(sums.at + e), outer, V::mul(slope, outer));
      V::store(batch.dots.at + e, inner);
      sum = V::add(sum, inner);
    }
    return V::sum(sum);
  }

  /// Adds what the edges of a batch give to z and source, each number rounded alone.
  HPCGNN_INLINE static void add_rounded(const AttentionBlock& b, const Edges& edges,
                                        const typename Softmax<V>::Edges& batch,
                                        const RoundedSums& sums) {
    const BatchRows<Scalar>& grads = edges.grad;
    const std::int64_t source = b.num_heads * b.head_width + edges.head;
    for (std::int64_t e = 0; e < edges.count; ++e) {
      const Scalar* const grad = grads.data + grads.index[e] * grads.pitch;
      const double share = batch.kept.at[e], through = batch.dots.at[e];
      sums.add(edges.head * b.head_width, b.head_width,
               [&](std::int64_t c) { return share * grad[c]; });
      sums.add(source, 1, [&](std::int64_t) { return through; });
    }
  }

  static void batch(const AttentionProblem& p, const Edges& edges, const TargetTerms<Scalar>* terms,
                    Scalar* dtarget, Scalar& dsource, Scalar* dz, const AdditiveSums& sums) {
    const AttentionBlock& b = *p.block;
    const std::int64_t pitch = b.num_heads * b.head_width;
    const X* const z =
        static_cast<const X*>(b.values) + edges.column * pitch + edges.head * b.head_width;
    typename Softmax<V>::Edges batch;
    for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
      inner_products<V, Scalar, X, kRegs, kTail>(edges.grad, z, batch.dots.at, column, tail);
    });
    dsource += differentiate(p, edges, terms, batch);
    for (std::int64_t e = 0; e < edges.count; ++e)
      dtarget[b.indices[edges.first + e]] += batch.dots.at[e];
    if (auto* const dedges = static_cast<Scalar*>(sums.dedges); dedges != nullptr)
      for (std::int64_t e = 0; e < edges.count; ++e)
        dedges[(edges.first + e) * b.num_heads + edges.head] = batch.dots.at[e];
    if (sums.rounded.sums != nullptr)
      add_rounded(b, edges, batch, sums_of_line(sums.rounded, edges.column));
    if (dz == nullptr) return;
    BatchRows<Scalar> cached = edges.grad;
    cached.shift = edges.count;
    for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
      weighted_sum<V, Scalar, kRegs, kTail>(cached, batch.kept.at, 1, dz, column, tail);
    });
  }

  /// source = <weights, z>: what the gradient of source adds to those of z and of the weights.
  HPCGNN_INLINE static void source_chain(const AttentionBlock& b, const AdditiveSums& sums,
                                         std::int64_t j, std::int64_t head, Scalar gain,
                                         Scalar* dz) {
    const std::int64_t first = head * b.head_width;
    const Scalar* const weights = static_cast<const Scalar*>(sums.weights) + first;
    Scalar* const dweights = static_cast<Scalar*>(sums.dweights) + first;
    const X* const z = static_cast<const X*>(b.values) + j * b.num_heads * b.head_width + first;
    for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
      add_multiple<V, Scalar, kRegs, kTail>(gain, weights, dz + first, column, tail);
      add_multiple<V, X, kRegs, kTail>(gain, z, dweights, column, tail);
    });
  }

  static void run(const AttentionProblem& p, const AttentionTask& task, const AdditiveSums& sums) {
    const AttentionBlock& b = *p.block;
    const std::int64_t longest = cached_batch<V, Scalar>(b.head_width);
    const std::int64_t pitch = b.num_heads * b.head_width;
    StateRows rows(b, b.head_width * static_cast<std::int64_t>(sizeof(Scalar)));
    for (std::int64_t j = task.first_line; j < b.num_columns && b.indptr[j] < task.last_edge; ++j) {
      const bool cut = b.indptr[j] < task.first_edge;
      Scalar* const dz = sums.dz == nullptr ? nullptr
                         : cut              ? static_cast<Scalar*>(sums.carry_dz)
                                            : static_cast<Scalar*>(sums.dz) + j * pitch;
      Scalar* const dsource = cut ? static_cast<Scalar*>(sums.carry_dsource)
                                  : static_cast<Scalar*>(sums.dsource) + j * b.num_heads;
      const std::int64_t begin = cut ? task.first_edge : b.indptr[j];
      const std::int64_t end = b.indptr[j + 1] < task.last_edge ? b.indptr[j + 1] : task.last_edge;
      Scalar gained[kMostHeads] = {};
      for (std::int64_t first = begin; first < end; first += longest) {
        const std::int64_t count = end - first < longest ? end - first : longest;
        const std::int32_t* const index = rows.find(first, count);
        for (std::int64_t head = task.first_head; head < task.last_head; ++head) {
          const std::int64_t offset = (head - task.first_head) * b.num_rows;
          const BatchRows<Scalar> grad{static_cast<const Scalar*>(sums.grad) + head * b.head_width,
                                       pitch, index, count, rows.known(first, count)};
          const Scalar source = static_cast<const Scalar*>(b.source)[j * b.num_heads + head];
          batch(p, {j, head, first, count, source, grad},
                static_cast<const TargetTerms<Scalar>*>(sums.terms) + offset,
                static_cast<Scalar*>(sums.dtarget) + offset, gained[head - task.first_head],
                dz == nullptr ? nullptr : dz + head * b.head_width, sums);
        }
      }
      for (std::int64_t head = task.first_head; head < task.last_head; ++head) {
        const Scalar gain = gained[head - task.first_head];
        dsource[head] += gain;
        if (sums.weights != nullptr) source_chain(b, sums, j, head, gain, dz);
      }
    }
  }
};

template <class F32, class F64>
constexpr AdditiveTable make_table() {
  AdditiveTable table{};
  const auto set = [&]<class V, class X>(Storage storage) {
    table.kernels[static_cast<int>(storage)] = {AdditiveForward<V, X>::run,
                                                AdditiveBackward<V, X>::run};
  };
  for_storages<F32, F64>(set);
  return table;
}

}  // namespace hpcgnn::kernels
