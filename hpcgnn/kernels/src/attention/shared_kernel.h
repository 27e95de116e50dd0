/// The kernels of shared.h, templates over the SIMD types.
///
/// The first heads read a batch of rows of x into the level-1 cache, and each prefetches a share of
/// the next rows. Two heads, or two edges, are processed together, so that speed is limited by
/// multiply-adds and not by reads of the cache.
#pragma once

#include "attention/columns.h"
#include "attention/shared.h"
#include "attention/shared_columns.h"

namespace hpcgnn::kernels {

template <class V>
struct SharedAttention {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;
  using Batch = typename Softmax<V>::Batch;
  using Columns = SharedColumns<V>;
  using Rows = typename Columns::Rows;

  struct Edges {
    std::int64_t row;
    const std::int32_t* columns;
    std::int64_t count;
  };

  /// Row of a matrix of num_heads numbers, at the first head of the task.
  template <class T>
  HPCGNN_INLINE static T* at_head(T* matrix, const AttentionBlock& b, const SharedTask& task,
                                  std::int64_t row) {
    return matrix + row * b.num_heads + task.first_head;
  }

  /// target + source of each edge, head by head.
  HPCGNN_INLINE static void add_terms(const AttentionBlock& b, const SharedTask& task,
                                      const Edges& edges, Batch* sums) {
    const std::int64_t heads = task.last_head - task.first_head;
    const Scalar* const source = static_cast<const Scalar*>(b.source);
    const Scalar* const target = at_head(static_cast<const Scalar*>(b.target), b, task, edges.row);
    for (std::int64_t e = 0; e < edges.count; ++e) {
      const Scalar* const from = at_head(source, b, task, edges.columns[e]);
      for (std::int64_t h = 0; h < heads; ++h) sums[h].at[e] = from[h] + target[h];
    }
  }

  HPCGNN_INLINE static Rows rows_of(const AttentionBlock& b, const SharedTask& task,
                                    const Edges& edges, const Scalar* gained) {
    const Scalar* const source = static_cast<const Scalar*>(b.source);
    return {static_cast<const Scalar*>(b.values),
            b.head_width,
            edges.columns,
            edges.count,
            at_head(source, b, task, 0),
            b.num_heads,
            gained == nullptr ? nullptr : at_head(gained, b, task, 0)};
  }

  HPCGNN_INLINE static auto names(const SharedProblem& p, const Edges& edges) {
    return [&p, edges](const std::uint64_t* streams, std::int64_t e) {
      return edge_name(streams[edges.row], p.block->column_ids[edges.columns[e]]);
    };
  }

  HPCGNN_INLINE static void drop_weights(const SharedProblem& p, const Edges& edges,
                                         std::int64_t head, Batch& weights) {
    if (p.weights.streams == nullptr) return;
    AttentionProblem own = p;
    own.weights.streams += head / p.heads_per_word * p.block->num_rows;
    Softmax<V>::drop_weights(own, head % p.heads_per_word, edges.count, names(p, edges), weights);
  }

  HPCGNN_INLINE static void rectify(const AttentionBlock& b, std::int64_t padded, const Batch& sums,
                                    Batch& logits) {
    const Reg slope = V::broadcast(static_cast<Scalar>(b.slope));
    for (std::int64_t e = 0; e < padded; e += V::kLanes)
      V::store(logits.at + e, Softmax<V>::rectified(V::load(sums.at + e), slope));
  }

  static void forward(const SharedProblem& p, const SharedTask& task, const SharedMeans& means) {
    const AttentionBlock& b = *p.block;
    const std::int64_t longest = cached_batch<V, Scalar>(b.head_width);
    const std::int64_t heads = task.last_head - task.first_head;
    Batch weights[kSharingHeads];
    for (std::int64_t i = task.first_row; i < task.last_row; ++i) {
      Scalar top[kSharingHeads], total[kSharingHeads], scales[kSharingHeads];
      for (std::int64_t h = 0; h < heads; ++h) top[h] = Softmax<V>::kNone, total[h] = 0;
      Scalar* const mean =
          static_cast<Scalar*>(means.mean) + (i * b.num_heads + task.first_head) * means.pitch;
      for (std::int64_t first = b.indptr[i]; first < b.indptr[i + 1]; first += longest) {
        const std::int64_t left = b.indptr[i + 1] - first;
        const Edges edges{i, b.indices + first, left < longest ? left : longest};
        add_terms(b, task, edges, weights);
        for (std::int64_t h = 0; h < heads; ++h) {
          Batch& own = weights[h];
          rectify(b, Softmax<V>::pad(own, edges.count, 0), own, own);
          Softmax<V>::drop_edges(p, edges.count, names(p, edges), Softmax<V>::kNone, own);
          scales[h] = Softmax<V>::soften(own, edges.count, top[h], total[h]);
          drop_weights(p, edges, task.first_head + h, own);
        }
        const Rows rows = rows_of(b, task, edges, nullptr);
        for_pairs(heads, [&]<int kWays>(std::int64_t h) {
          Columns::template add_rows<kWays>(
              rows.share(h / 2, (heads + 1) / 2, b.num_nonzeros - first), weights + h, scales + h,
              mean + h * means.pitch, means.pitch);
        });
      }
      finish(b, task, i, top, total, mean, means);
    }
  }

  HPCGNN_INLINE static void finish(const AttentionBlock& b, const SharedTask& task,
                                   std::int64_t row, const Scalar* top, const Scalar* total,
                                   Scalar* mean, const SharedMeans& means) {
    Scalar* const lse = at_head(static_cast<Scalar*>(means.lse), b, task, row);
    for (std::int64_t h = 0; h < task.last_head - task.first_head; ++h) {
      Scalar* const out = mean + h * means.pitch;
      const bool none = top[h] == Softmax<V>::kNone;
      const Scalar scale = none ? 0 : 1 / total[h];
      for (std::int64_t c = 0; c < b.head_width; ++c) out[c] = none ? 0 : out[c] * scale;
      lse[h] = none ? top[h] : top[h] + std::log(total[h]);
    }
  }

  /// All edges of a row whose log-sum-exp is -inf were left out; exp(e - inf) is 0, as it must be.
  HPCGNN_INLINE static Scalar sound(Scalar lse) { return std::isinf(lse) ? std::abs(lse) : lse; }

  /// Turn inner products into the gradients of target + source; returns their sum.
  HPCGNN_INLINE static Scalar differentiate(const SharedProblem& p, const Edges& edges,
                                            std::int64_t head, Scalar lse, Scalar delta,
                                            Batch& sums, Batch& dots) {
    const AttentionBlock& b = *p.block;
    const std::int64_t padded = Softmax<V>::pad(sums, edges.count, 0);
    Batch logits, kept;
    rectify(b, padded, sums, logits);
    for (std::int64_t e = 0; e < padded; ++e) kept.at[e] = 1;
    Softmax<V>::drop_edges(p, edges.count, names(p, edges), Softmax<V>::kNone, logits);
    drop_weights(p, edges, head, kept);
    Softmax<V>::pad(logits, edges.count, Softmax<V>::kNone);
    Softmax<V>::pad(dots, edges.count, 0);
    const Reg shift = V::broadcast(lse), slope = V::broadcast(static_cast<Scalar>(b.slope));
    Reg sum = V::zero();
    for (std::int64_t e = 0; e < padded; e += V::kLanes) {
      const Reg alpha = Softmax<V>::share(V::load(logits.at + e), shift);
      const Reg inner = V::mul(V::load(kept.at + e), V::load(dots.at + e));
      const Reg outer = V::mul(alpha, V::sub(inner, V::broadcast(delta)));
      const Reg found =
          V::choose_less(V::zero(), V::load(sums.at + e), outer, V::mul(slope, outer));
      V::store(dots.at + e, found);
      sum = V::add(sum, found);
    }
    return V::sum(sum);
  }

  static void backward_rows(const SharedProblem& p, const SharedTask& task,
                            const SharedGradients& g, void* dsource) {
    const AttentionBlock& b = *p.block;
    const std::int64_t longest = cached_batch<V, Scalar>(b.head_width);
    const std::int64_t heads = task.last_head - task.first_head, pitch = g.means.pitch;
    Batch sums[kSharingHeads], dots[kSharingHeads];
    for (std::int64_t i = task.first_row; i < task.last_row; ++i) {
      const std::int64_t place = (i * b.num_heads + task.first_head) * pitch;
      const Scalar* const grad = static_cast<const Scalar*>(g.grad) + place;
      const Scalar* const mean = static_cast<const Scalar*>(g.means.mean) + place;
      const Scalar* const lse = at_head(static_cast<const Scalar*>(g.means.lse), b, task, i);
      Scalar* const dtarget = at_head(static_cast<Scalar*>(g.dtarget), b, task, i);
      Scalar deltas[kSharingHeads];
      for (std::int64_t h = 0; h < heads; ++h)
        deltas[h] = dot<V>(grad + h * pitch, mean + h * pitch, b.head_width);
      for (std::int64_t first = b.indptr[i]; first < b.indptr[i + 1]; first += longest) {
        const std::int64_t left = b.indptr[i + 1] - first;
        const Edges edges{i, b.indices + first, left < longest ? left : longest};
        add_terms(b, task, edges, sums);
        const Rows rows = rows_of(b, task, edges, static_cast<const Scalar*>(dsource));
        for_pairs(heads, [&]<int kWays>(std::int64_t h) {
          Columns::template multiply_rows<kWays>(
              rows.share(h / 2, (heads + 1) / 2, b.num_nonzeros - first), grad + h * pitch, pitch,
              dots + h);
        });
        for (std::int64_t h = 0; h < heads; ++h)
          dtarget[h] += differentiate(p, edges, task.first_head + h, sound(lse[h]), deltas[h],
                                      sums[h], dots[h]);
        for (std::int64_t e = 0; e < edges.count; ++e) {
          Scalar* const into = at_head(static_cast<Scalar*>(dsource), b, task, edges.columns[e]);
          for (std::int64_t h = 0; h < heads; ++h) into[h] += dots[h].at[e];
        }
      }
    }
  }

  /// alpha * kept of each edge, head by head.
  HPCGNN_INLINE static void weigh(const SharedProblem& p, const SharedTask& task,
                                  const Edges& edges, const Scalar* lse, Batch* weights) {
    add_terms(*p.block, task, edges, weights);
    for (std::int64_t h = 0; h < task.last_head - task.first_head; ++h) {
      Batch& own = weights[h];
      const std::int64_t padded = Softmax<V>::pad(own, edges.count, 0);
      rectify(*p.block, padded, own, own);
      Softmax<V>::drop_edges(p, edges.count, names(p, edges), Softmax<V>::kNone, own);
      const Reg shift = V::broadcast(sound(lse[h]));
      for (std::int64_t e = 0; e < padded; e += V::kLanes)
        V::store(own.at + e, Softmax<V>::share(V::load(own.at + e), shift));
      drop_weights(p, edges, task.first_head + h, own);
    }
  }

  static void backward_columns(const SharedProblem& p, const SharedTask& task,
                               const SharedGradients& g, const ColumnRange& range) {
    const AttentionBlock& b = *p.block;
    const std::int64_t heads = task.last_head - task.first_head, pitch = g.means.pitch;
    const bool whole = range.first == 0 && range.last == b.num_columns;
    Scalar* const dx = static_cast<Scalar*>(g.dx);
    Batch weights[kSharingHeads];
    std::int32_t chosen[kBatch];
    for (std::int64_t i = task.first_row; i < task.last_row; ++i) {
      const Scalar* const grad =
          static_cast<const Scalar*>(g.grad) + (i * b.num_heads + task.first_head) * pitch;
      const Scalar* const lse = at_head(static_cast<const Scalar*>(g.means.lse), b, task, i);
      for (std::int64_t first = b.indptr[i]; first < b.indptr[i + 1]; first += kBatch) {
        const std::int64_t left = b.indptr[i + 1] - first;
        Edges edges{i, b.indices + first, left < kBatch ? left : kBatch};
        std::int64_t known = b.num_nonzeros - first - Columns::kAhead;
        if (!whole) {
          edges.count = Columns::choose(edges.columns, edges.count, range, chosen);
          edges.columns = chosen;
          // It is not yet known which edges after the batch are in this range.
          known = edges.count - Columns::kAhead;
          for (std::int64_t k = 0; k < edges.count && k < Columns::kAhead; ++k)
            Columns::foresee(dx + chosen[k] * b.head_width, b.head_width);
        }
        weigh(p, task, edges, lse, weights);
        for_pairs(edges.count, [&]<int kWays>(std::int64_t e) {
          for (std::int64_t k = e; k < e + kWays && k < known; ++k)
            Columns::foresee(dx + edges.columns[k + Columns::kAhead] * b.head_width, b.head_width);
          Columns::template add_heads<kWays>(weights, e, heads, grad, pitch, b.head_width,
                                             edges.columns + e, dx);
        });
      }
    }
  }
};

template <class V>
constexpr SharedKernels shared_kernels() {
  return {SharedAttention<V>::forward, SharedAttention<V>::backward_rows,
          SharedAttention<V>::backward_columns};
}

template <class F32, class F64>
constexpr SharedTable make_table() {
  return {.float32 = shared_kernels<F32>(), .float64 = shared_kernels<F64>()};
}

}  // namespace hpcgnn::kernels
