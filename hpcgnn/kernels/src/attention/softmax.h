/// Logits of a batch of edges of one head, in the level-1 cache: softmax, its gradient, dropout.
#pragma once

#include <cmath>
#include <cstdint>

#include "attention/problem.h"
#include "random_bits.h"
#include "simd/exponential.h"

namespace hpcgnn::kernels {

inline constexpr std::int64_t kBatch = 128;
inline constexpr std::uint64_t kHeadStep = 0xd1342543de82ef95u;

/// The name of the edge of a row and a column, for the dropout of all heads.
HPCGNN_INLINE std::uint64_t edge_name(std::uint64_t stream, std::int64_t column_id) {
  return stream + static_cast<std::uint64_t>(column_id) * kGolden;
}

template <class V>
struct Softmax {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;
  static constexpr Scalar kNone = -static_cast<Scalar>(INFINITY);

  /// Numbers of a batch, read and written in whole registers.
  struct alignas(64) Batch {
    Scalar at[kBatch];
  };

  HPCGNN_INLINE static Reg rectified(Reg x, Reg slope) {
    return V::choose_less(V::zero(), x, x, V::mul(slope, x));
  }

  /// exp(logit - lse), at most 1: where logits are large, rounding may have left lse far below one.
  HPCGNN_INLINE static Reg share(Reg logit, Reg lse) {
    return exponential<V>(V::min(V::zero(), V::sub(logit, lse)));
  }

  /// Fill up the last register of a batch; returns the number of edges with the filling.
  HPCGNN_INLINE static std::int64_t pad(Batch& batch, std::int64_t count, Scalar value) {
    const std::int64_t padded = (count + V::kLanes - 1) / V::kLanes * V::kLanes;
    for (std::int64_t e = count; e < padded; ++e) batch.at[e] = value;
    return padded;
  }

  HPCGNN_INLINE static bool dropped(const DropoutBits& bits, std::uint64_t name,
                                    std::int64_t head) {
    const std::uint64_t of_head = name + static_cast<std::uint64_t>(head) * kHeadStep;
    return (mix_bits(of_head) & 0xffffffffu) < bits.threshold;
  }

  /// Give edges that are left out the value `gone`; name(streams, e) is the edge_name.
  template <class Name>
  HPCGNN_INLINE static void drop_edges(const AttentionProblem& p, std::int64_t count,
                                       const Name& name, Scalar gone, Batch& batch) {
    if (p.edges.streams == nullptr) return;
    for (std::int64_t e = 0; e < count; ++e)
      if (dropped(p.edges, name(p.edges.streams, e), 0)) batch.at[e] = gone;
  }

  /// Multiply numbers with 0 or 1 / (1 - p).
  template <class Name>
  HPCGNN_INLINE static void drop_weights(const AttentionProblem& p, std::int64_t head,
                                         std::int64_t count, const Name& name, Batch& batch) {
    if (p.weights.streams == nullptr) return;
    const Scalar scale = static_cast<Scalar>(1 / (1 - p.block->weight_dropout.p));
    for (std::int64_t e = 0; e < count; ++e)
      batch.at[e] =
          dropped(p.weights, name(p.weights.streams, e), head) ? Scalar(0) : batch.at[e] * scale;
  }

  /// Turn logits into exp(logit - top) and add them to the state; returns the factor of the old
  /// sums of z.
  HPCGNN_INLINE static Scalar soften(Batch& logits, std::int64_t count, Scalar& top,
                                     Scalar& total) {
    const std::int64_t padded = pad(logits, count, kNone);
    Reg largest = V::broadcast(top);
    for (std::int64_t e = 0; e < padded; e += V::kLanes)
      largest = V::max(V::load(logits.at + e), largest);
    const Scalar old_top = top;
    top = V::largest(largest);
    // If all edges are left out, exp(-inf - 0) is 0, but -inf - -inf would be NaN.
    const Reg shift = V::broadcast(top == kNone ? Scalar(0) : top);
    Reg sum = V::zero();
    for (std::int64_t e = 0; e < padded; e += V::kLanes) {
      const Reg weight = exponential<V>(V::sub(V::load(logits.at + e), shift));
      V::store(logits.at + e, weight);
      sum = V::add(sum, weight);
    }
    Scalar scale = 0;
    if (old_top == top && top != kNone)
      scale = 1;
    else if (old_top != kNone)
      scale = exponential_of<V>(old_top - top);
    total = total * scale + V::sum(sum);
    // The maximum may miss a NaN; the sum does not.
    if (total != total) top = total;
    return scale;
  }

  /// The numbers that give the gradients of the logits; `dots` are <grad, z>.
  struct Edges {
    Batch logits, lse, delta, kept, dots;
  };

  /// Turn kept into alpha * kept, and dots into the gradients of the logits,
  /// alpha * (kept * dot - delta).
  HPCGNN_INLINE static void differentiate(Edges& edges, std::int64_t count) {
    const std::int64_t padded = pad(edges.logits, count, kNone);
    pad(edges.lse, count, 0);
    pad(edges.delta, count, 0);
    pad(edges.kept, count, 0);
    pad(edges.dots, count, 0);
    for (std::int64_t e = 0; e < padded; e += V::kLanes) {
      const Reg logit = V::load(edges.logits.at + e), kept = V::load(edges.kept.at + e);
      const Reg alpha = share(logit, V::load(edges.lse.at + e));
      const Reg inner = V::mul(kept, V::load(edges.dots.at + e));
      V::store(edges.dots.at + e, V::mul(alpha, V::sub(inner, V::load(edges.delta.at + e))));
      V::store(edges.kept.at + e, V::mul(alpha, kept));
    }
  }
};

}  // namespace hpcgnn::kernels
