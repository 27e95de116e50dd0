/// The attention kernels, templates over the SIMD types; included once per instruction set.
///
/// Edges go by in batches. The logits of a batch are gathered from the small (heads, columns) copy
/// of `source`, their maximum is found and exp taken on registers full of edges; then each row of z
/// is read once, into sums that stay in registers.
#pragma once

#include <cmath>

#include "attention_columns.h"
#include "attention_problem.h"
#include "exponential.h"
#include "random_bits.h"

namespace hpcgnn::kernels {

inline constexpr std::int64_t kBatch = 128;
inline constexpr std::uint64_t kHeadStep = 0xd1342543de82ef95u;

/// exp(-x) underflows to 0 for x = infinity, and inf - inf never happens.
template <class T>
HPCGNN_INLINE T finite_top(T top) {
  return top == -static_cast<T>(INFINITY) ? T(0) : top;
}

template <class V, class X>
struct AttentionKernel {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;
  static constexpr Scalar kNone = -static_cast<Scalar>(INFINITY);

  HPCGNN_INLINE static bool dropped(std::uint64_t stream, std::int64_t column_id, std::int64_t head,
                                    std::uint64_t threshold) {
    const std::uint64_t name = stream + static_cast<std::uint64_t>(column_id) * kGolden +
                               static_cast<std::uint64_t>(head) * kHeadStep;
    return (mix_bits(name) & 0xffffffffu) < threshold;
  }

  HPCGNN_INLINE static Reg rectified(Reg x, Reg slope) {
    return V::choose_less(V::zero(), x, x, V::mul(slope, x));
  }

  /// Fill the last register of a batch of `count` numbers.
  HPCGNN_INLINE static std::int64_t pad(Scalar* numbers, std::int64_t count, Scalar value) {
    const std::int64_t padded = (count + V::kLanes - 1) / V::kLanes * V::kLanes;
    for (std::int64_t e = count; e < padded; ++e) numbers[e] = value;
    return padded;
  }

  // ---- forward ----------------------------------------------------------------------------------

  /// Edges of one row and head; `row` is that of the block.
  struct RowEdges {
    std::int64_t row, head, first, count;
    Scalar target;
  };

  HPCGNN_INLINE static void logits_of(const AttentionProblem& p, const RowEdges& edges,
                                      Scalar* logits) {
    const AttentionBlock& b = *p.block;
    const Scalar* const source = static_cast<const Scalar*>(p.source) + edges.head * b.num_columns;
    const std::int32_t* const columns = b.indices + edges.first;
    for (std::int64_t e = 0; e < edges.count; ++e) logits[e] = source[columns[e]];
    const Reg target = V::broadcast(edges.target);
    const Reg slope = V::broadcast(static_cast<Scalar>(b.slope));
    const std::int64_t padded = pad(logits, edges.count, 0);
    for (std::int64_t e = 0; e < padded; e += V::kLanes)
      V::store(logits + e, rectified(V::add(V::load(logits + e), target), slope));
    pad(logits, edges.count, kNone);
    if (p.edges.streams != nullptr)
      for (std::int64_t e = 0; e < edges.count; ++e)
        if (dropped(p.edges.streams[edges.row], b.column_ids[columns[e]], 0, p.edges.threshold))
          logits[e] = kNone;
  }

  /// Turn logits into exp(logit - top) and add them to the state; returns what the old sums of z
  /// count for.
  HPCGNN_INLINE static Scalar soften(Scalar* logits, std::int64_t count, Scalar& top,
                                     Scalar& total) {
    Reg largest = V::broadcast(top);
    for (std::int64_t e = 0; e < count; e += V::kLanes)
      largest = V::max(V::load(logits + e), largest);
    const Scalar old_top = top;
    top = V::largest(largest);
    const Reg shift = V::broadcast(finite_top(top));
    Reg sum = V::zero();
    for (std::int64_t e = 0; e < count; e += V::kLanes) {
      const Reg weight = exponential<V>(V::sub(V::load(logits + e), shift));
      V::store(logits + e, weight);
      sum = V::add(sum, weight);
    }
    Scalar scale = 0;
    if (old_top == top && top != kNone)
      scale = 1;
    else if (old_top != kNone)
      scale = exponential_of<V>(old_top - top);
    total = total * scale + V::sum(sum);
    // The largest of numbers that are none may be any of them: the sum tells.
    if (total != total) top = total;
    return scale;
  }

  HPCGNN_INLINE static void drop_weights(const AttentionProblem& p, const RowEdges& edges,
                                         Scalar* weights) {
    const AttentionBlock& b = *p.block;
    const Scalar scale = static_cast<Scalar>(1 / (1 - b.weight_dropout.p));
    const std::uint64_t stream = p.weights.streams[edges.row];
    const std::int32_t* const columns = b.indices + edges.first;
    for (std::int64_t e = 0; e < edges.count; ++e)
      weights[e] = dropped(stream, b.column_ids[columns[e]], edges.head, p.weights.threshold)
                       ? Scalar(0)
                       : weights[e] * scale;
  }

  static void forward_batch(const AttentionProblem& p, const RowEdges& edges, Scalar& top,
                            Scalar& total, Scalar* out) {
    const AttentionBlock& b = *p.block;
    alignas(64) Scalar weights[kBatch];
    logits_of(p, edges, weights);
    const Scalar scale = soften(weights, edges.count, top, total);
    if (p.weights.streams != nullptr) drop_weights(p, edges, weights);
    const BatchRows<X> batch{static_cast<const X*>(b.z) + edges.head * b.head_width,
                             b.num_heads * b.head_width, b.indices + edges.first, edges.count,
                             b.num_nonzeros - edges.first};
    for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
      weighted_sum<V, X, kRegs, kTail>(batch, weights, scale, out, column, tail);
    });
  }

  static void forward(const AttentionProblem& p, const AttentionTask& task,
                      const AttentionState& state, const AttentionState& carry) {
    const AttentionBlock& b = *p.block;
    for (std::int64_t i = task.first_line; i < b.num_rows && b.indptr[i] < task.last_edge; ++i) {
      const bool cut = b.indptr[i] < task.first_edge;
      const AttentionState& into = cut ? carry : state;
      const std::int64_t row = b.rows ? b.rows[i] : i, place = cut ? 0 : row;
      const std::int64_t begin = cut ? task.first_edge : b.indptr[i];
      const std::int64_t end = b.indptr[i + 1] < task.last_edge ? b.indptr[i + 1] : task.last_edge;
      for (std::int64_t first = begin; first < end; first += kBatch)
        for (std::int64_t head = task.first_head; head < task.last_head; ++head) {
          const std::int64_t at = place * b.num_heads + head;
          const Scalar target = static_cast<const Scalar*>(b.target)[row * b.num_heads + head];
          const std::int64_t count = end - first < kBatch ? end - first : kBatch;
          forward_batch(p, {i, head, first, count, target}, static_cast<Scalar*>(into.top)[at],
                        static_cast<Scalar*>(into.total)[at],
                        static_cast<Scalar*>(into.out) + at * b.head_width);
        }
    }
  }

  // ---- backward ---------------------------------------------------------------------------------

  /// Edges of one column and head.
  struct ColumnEdges {
    std::int64_t column, head, first, count;
    Scalar source;
    const std::int32_t* state_rows;  ///< row of the state of each edge, and further ones
    std::int64_t known;
  };

  /// Turn inner products <grad, z> into the gradients of the logits, and fill in the weights that
  /// grad counts with. Returns the sum of the gradients.
  HPCGNN_INLINE static Scalar differentiate(const AttentionProblem& p, const ColumnEdges& edges,
                                            const TargetTerms<Scalar>* terms, Scalar* dots,
                                            Scalar* weights) {
    const AttentionBlock& b = *p.block;
    const std::int32_t* const rows = b.indices + edges.first;
    alignas(64) Scalar target[kBatch], lse[kBatch], delta[kBatch], kept[kBatch];
    for (std::int64_t e = 0; e < edges.count; ++e) {
      const TargetTerms<Scalar>& term = terms[rows[e]];
      target[e] = term.target;
      lse[e] = term.lse;
      delta[e] = term.delta;
      kept[e] = 1;
    }
    drop_edges(p, edges, lse, kept);
    pad(target, edges.count, 0);
    pad(lse, edges.count, -kNone);
    pad(delta, edges.count, 0);
    pad(kept, edges.count, 0);
    const std::int64_t padded = pad(dots, edges.count, 0);
    const Reg source = V::broadcast(edges.source);
    const Reg slope = V::broadcast(static_cast<Scalar>(b.slope));
    Reg sum = V::zero();
    for (std::int64_t e = 0; e < padded; e += V::kLanes) {
      const Reg x = V::add(V::load(target + e), source);
      const Reg alpha = exponential<V>(V::sub(rectified(x, slope), V::load(lse + e)));
      const Reg keep = V::load(kept + e);
      const Reg outer = V::mul(alpha, V::sub(V::mul(keep, V::load(dots + e)), V::load(delta + e)));
      const Reg inner = V::choose_less(V::zero(), x, outer, V::mul(slope, outer));
      V::store(weights + e, V::mul(alpha, keep));
      V::store(dots + e, inner);
      sum = V::add(sum, inner);
    }
    return V::sum(sum);
  }

  HPCGNN_INLINE static void drop_edges(const AttentionProblem& p, const ColumnEdges& edges,
                                       Scalar* lse, Scalar* kept) {
    const AttentionBlock& b = *p.block;
    const std::int32_t* const rows = b.indices + edges.first;
    if (p.edges.streams != nullptr)
      for (std::int64_t e = 0; e < edges.count; ++e)
        if (dropped(p.edges.streams[rows[e]], b.column_ids[edges.column], 0, p.edges.threshold))
          lse[e] = -kNone;
    if (p.weights.streams == nullptr) return;
    const Scalar scale = static_cast<Scalar>(1 / (1 - b.weight_dropout.p));
    for (std::int64_t e = 0; e < edges.count; ++e)
      kept[e] = dropped(p.weights.streams[rows[e]], b.column_ids[edges.column], edges.head,
                        p.weights.threshold)
                    ? Scalar(0)
                    : scale;
  }

  static void backward_batch(const AttentionProblem& p, const ColumnEdges& edges,
                             const AttentionSums& sums, const TargetTerms<Scalar>* terms,
                             Scalar* dtarget, Scalar& dsource, Scalar* dz) {
    const AttentionBlock& b = *p.block;
    const std::int64_t first_column = edges.head * b.head_width, pitch = b.num_heads * b.head_width;
    alignas(64) Scalar dots[kBatch], weights[kBatch];
    const BatchRows<Scalar> batch{static_cast<const Scalar*>(sums.grad) + first_column, pitch,
                                  edges.state_rows, edges.count, edges.known};
    const X* const z = static_cast<const X*>(b.z) + edges.column * pitch + first_column;
    for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
      inner_products<V, X, kRegs, kTail>(batch, z, dots, column, tail);
    });
    dsource += differentiate(p, edges, terms, dots, weights);
    for (std::int64_t e = 0; e < edges.count; ++e) dtarget[b.indices[edges.first + e]] += dots[e];
    BatchRows<Scalar> again = batch;
    again.known = 0;
    for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
      weighted_sum<V, Scalar, kRegs, kTail>(again, weights, 1, dz, column, tail);
    });
  }

  /// The rows of the state for edges from `first` on, looked up into `buffer` where needed.
  HPCGNN_INLINE static const std::int32_t* state_rows(const AttentionBlock& b, std::int64_t first,
                                                      std::int64_t known, std::int32_t* buffer) {
    if (b.rows == nullptr) return b.indices + first;
    for (std::int64_t e = 0; e < known; ++e) buffer[e] = b.rows[b.indices[first + e]];
    return buffer;
  }

  /// Edges whose rows fit the level-1 cache between their two uses.
  HPCGNN_INLINE static std::int64_t backward_batch_edges(std::int64_t head_width) {
    constexpr std::int64_t kBytes = 24 << 10;
    const std::int64_t fitting = kBytes / static_cast<std::int64_t>(sizeof(Scalar)) / head_width;
    const std::int64_t whole = fitting / V::kLanes * V::kLanes;
    return whole > kBatch ? kBatch : whole < V::kLanes ? V::kLanes : whole;
  }

  static void backward(const AttentionProblem& p, const AttentionTask& task,
                       const AttentionSums& sums) {
    const AttentionBlock& b = *p.block;
    const std::int64_t batch = backward_batch_edges(b.head_width);
    const std::int64_t bytes = b.head_width * static_cast<std::int64_t>(sizeof(Scalar));
    const std::int64_t look_ahead = prefetch_distance(bytes < 512 ? bytes : 512);
    std::int32_t buffer[kBatch + kLineFills];
    for (std::int64_t j = task.first_line; j < b.num_columns && b.indptr[j] < task.last_edge; ++j) {
      const bool cut = b.indptr[j] < task.first_edge;
      Scalar* const dz = cut ? static_cast<Scalar*>(sums.carry_dz)
                             : static_cast<Scalar*>(sums.dz) + j * b.num_heads * b.head_width;
      Scalar* const dsource = cut ? static_cast<Scalar*>(sums.carry_dsource)
                                  : static_cast<Scalar*>(sums.dsource) + j * b.num_heads;
      const std::int64_t begin = cut ? task.first_edge : b.indptr[j];
      const std::int64_t end = b.indptr[j + 1] < task.last_edge ? b.indptr[j + 1] : task.last_edge;
      for (std::int64_t first = begin; first < end; first += batch) {
        const std::int64_t count = end - first < batch ? end - first : batch;
        const std::int64_t left = b.num_nonzeros - first;
        const std::int64_t known = left < count + look_ahead ? left : count + look_ahead;
        const std::int32_t* const rows = state_rows(b, first, known, buffer);
        for (std::int64_t head = task.first_head; head < task.last_head; ++head) {
          const std::int64_t offset = (head - task.first_head) * b.num_rows;
          const Scalar source = static_cast<const Scalar*>(b.source)[j * b.num_heads + head];
          backward_batch(p, {j, head, first, count, source, rows, known}, sums,
                         static_cast<const TargetTerms<Scalar>*>(sums.terms) + offset,
                         static_cast<Scalar*>(sums.dtarget) + offset, dsource[head],
                         dz + head * b.head_width);
        }
      }
    }
  }
};

template <class V, class X>
constexpr AttentionKernels make_attention_kernels() {
  return {AttentionKernel<V, X>::forward, AttentionKernel<V, X>::backward};
}

template <class F32, class F64>
constexpr AttentionTable make_attention_table() {
  AttentionTable table{};
  table.kernels[static_cast<int>(Storage::kFloat32)] = make_attention_kernels<F32, float>();
  table.kernels[static_cast<int>(Storage::kFloat64)] = make_attention_kernels<F64, double>();
  table.kernels[static_cast<int>(Storage::kBFloat16)] = make_attention_kernels<F32, BFloat16>();
  table.kernels[static_cast<int>(Storage::kFloat16)] = make_attention_kernels<F32, Float16>();
  return table;
}

}  // namespace hpcgnn::kernels
