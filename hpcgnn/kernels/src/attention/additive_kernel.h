/// The attention kernels, templates over the SIMD types; included once per instruction set.
///
/// Lines are processed in chunks of edges, with all heads of a group together: the numbers of an
/// edge are adjacent, so that lines of few edges fill registers, too. Numbers from small arrays are
/// gathered for all lines of a chunk before they are read as registers, so that their writes have
/// ended. Then each row of z, or of grad, is read from memory once, into sums in registers.
#pragma once

#include "attention/columns.h"
#include "attention/groups.h"
#include "attention/rounding.h"
#include "attention/softmax.h"
#include "simd/storages.h"

namespace hpcgnn::kernels {

template <class V, class X>
struct AdditiveForward {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;
  using Group = HeadGroup<V>;
  using Numbers = typename Group::Numbers;

  /// Copies to each edge the score of its column.
  static void gather(const AttentionProblem& p, const Group& group, const EdgeChunk<V>& chunk,
                     Numbers& sums) {
    const AttentionBlock& b = *p.block;
    const Scalar* const source =
        static_cast<const Scalar*>(p.source) + group.index * b.num_columns * group.step;
    for (const LinePiece& piece : chunk) {
      const std::int32_t* const columns = b.indices + piece.first;
      Scalar* const to = sums.at + piece.slot;
      with_step<V>(group.step, [&]<int kStep>() {
        for (std::int64_t e = 0; e < piece.count; ++e)
          copy_heads<kStep>(source + columns[e] * kStep, to + e * kStep);
      });
      V::store(to + piece.count * group.step, V::zero());
      group.add_edges(b, piece, to);
    }
  }

  /// Turn sums into weights exp(logit - top) and add them to the state of a line; writes the factor
  /// of the old sums of z to `scale`. Returns true, without a factor, if there are no old sums.
  HPCGNN_INLINE static bool soften(const AttentionProblem& p, const Group& group,
                                   const LinePiece& piece, const AttentionState& into,
                                   Scalar* weights, Scalar* scale) {
    const AttentionBlock& b = *p.block;
    const std::int64_t row = b.rows ? b.rows[piece.line] : piece.line;
    const std::int64_t at = (piece.cut ? 0 : row) * b.num_heads + group.first;
    Scalar* const top = static_cast<Scalar*>(into.top) + at;
    Scalar* const total = static_cast<Scalar*>(into.total) + at;
    const std::int64_t numbers = piece.count * group.step;
    const Reg slope = V::broadcast(static_cast<Scalar>(b.slope));
    const Reg target =
        group.spread(static_cast<const Scalar*>(b.target) + row * b.num_heads + group.first);
    for (std::int64_t k = 0; k < numbers; k += V::kLanes) {
      Reg logit = Softmax<V>::rectified(V::add(V::load(weights + k), target), slope);
      if (k + V::kLanes > numbers) logit = V::add(logit, group.none_behind(numbers - k));
      V::store(weights + k, logit);
    }
    const auto name = [&](const std::uint64_t* streams, std::int64_t e) {
      return edge_name(streams[piece.line], b.column_ids[b.indices[piece.first + e]]);
    };
    group.drop_edges(p.edges, piece.count, name, Softmax<V>::kNone, weights);
    const Reg old = group.spread(top);
    Reg largest = old;
    for (std::int64_t k = 0; k < numbers; k += V::kLanes)
      largest = V::max(V::load(weights + k), largest);
    largest = group.fold(largest, [](Reg x, Reg y) { return V::max(x, y); });
    // If all edges are left out, exp(-inf - 0) is 0, but -inf - -inf would be NaN.
    const Reg none = V::broadcast(Softmax<V>::kNone);
    const Reg shift = V::choose_less(none, largest, largest, V::zero());
    Reg sum = V::zero();
    for (std::int64_t k = 0; k < numbers; k += V::kLanes) {
      const Reg weight = exponential<V>(V::sub(V::load(weights + k), shift));
      V::store(weights + k, weight);
      sum = V::add(sum, weight);
    }
    sum = group.fold(sum, [](Reg x, Reg y) { return V::add(x, y); });
    const bool fresh = V::largest(old) == Softmax<V>::kNone;
    if (!fresh) {
      const Reg count = exponential<V>(V::sub(old, shift));
      V::store(scale, count);
      sum = V::fma(group.spread(total), count, sum);
    }
    // The maximum may miss a NaN; the sum does not.
    const Reg infinite = V::broadcast(-Softmax<V>::kNone);
    V::store(top, V::choose_less(sum, infinite, largest, sum), group.mask);
    V::store(total, sum, group.mask);
    group.drop_weights(p, piece.count, name, weights);
    return fresh;
  }

  static void run(const AttentionProblem& p, const AttentionTask& task, const AttentionState& state,
                  const AttentionState& carry) {
    const AttentionBlock& b = *p.block;
    const Group group(task);
    const std::int64_t width = group.count * b.head_width, pitch = b.num_heads * b.head_width;
    const HeadsOfColumns<V> heads(group.count, b.head_width);
    Numbers weights, scales;
    for_chunks<V>(b, b.num_rows, task, cached_batch<V, X>(width), [&](EdgeChunk<V>& chunk) {
      gather(p, group, chunk, weights);
      for (LinePiece& piece : chunk)
        piece.fresh = soften(p, group, piece, piece.cut ? carry : state, weights.at + piece.slot,
                             scales.at + chunk.number(piece) * V::kLanes);
      for (const LinePiece& piece : chunk) {
        const std::int64_t row = b.rows ? b.rows[piece.line] : piece.line;
        const AttentionState& into = piece.cut ? carry : state;
        Scalar* const out = static_cast<Scalar*>(into.out) + (piece.cut ? 0 : row) * pitch +
                            group.first * b.head_width;
        const BatchRows<X> rows{static_cast<const X*>(b.values) + group.first * b.head_width, pitch,
                                b.indices + piece.first, piece.count, b.num_nonzeros - piece.first};
        const WeightsOfHeads<V> own{weights.at + piece.slot, group.step, heads,
                                    scales.at + chunk.number(piece) * V::kLanes, piece.fresh};
        for_columns<V>(width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
          if (group.step == 1)
            weighted_sum<V, X, kRegs, kTail>(rows, own.at, piece.fresh ? 0 : *own.scale, out,
                                             column, tail);
          else
            add_weighted<V, X, kRegs, kTail>(rows, own, out, column, tail);
        });
      }
    });
  }
};

template <class V, class X>
struct AdditiveBackward {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;
  using Group = HeadGroup<V>;
  using Numbers = typename Group::Numbers;

  static constexpr std::int64_t kTermsAhead = 16;

  /// Numbers of the edges of a chunk. `dots` are <grad, z>, later the gradients of the logits
  /// before the rectifier; `kept` are the factors of dropout, later the weights of grad.
  struct Edges {
    Numbers sums, lse, delta, kept, dots;
  };

  /// The operands of a task.
  struct Operands {
    const AttentionProblem& p;
    const AdditiveSums& sums;
    const Group& group;
  };

  /// Fills in all but the weights of a piece, given its rows of grad.
  HPCGNN_INLINE static void gather(const Operands& o, const LinePiece& piece,
                                   const BatchRows<Scalar>& grads, Edges& edges) {
    const AttentionBlock& b = *o.p.block;
    const Group& group = o.group;
    const std::int64_t numbers = piece.count * group.step;
    const X* const z =
        static_cast<const X*>(b.values) + (piece.line * b.num_heads + group.first) * b.head_width;
    Scalar* const dots = edges.dots.at + piece.slot;
    for (std::int64_t k = 0; k < numbers; k += V::kLanes) V::store(dots + k, V::zero());
    if (group.step == 1)
      for_columns<V>(b.head_width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
        inner_products<V, Scalar, X, kRegs, kTail>(grads, z, dots, column, tail);
      });
    with_step<V>(group.step, [&]<int kStep>() { gather<kStep>(o, piece, grads, z, edges); });
    // Behind the last edge, weights are exp(-inf).
    const std::int64_t end = piece.slot + numbers;
    V::store(edges.sums.at + end, V::zero());
    V::store(edges.lse.at + end, V::broadcast(-Softmax<V>::kNone));
    V::store(edges.delta.at + end, V::zero());
    group.add_edges(b, piece, edges.sums.at + piece.slot);
  }

  template <int kStep>
  HPCGNN_INLINE static void gather(const Operands& o, const LinePiece& piece,
                                   const BatchRows<Scalar>& grads, const X* z, Edges& edges) {
    const AttentionBlock& b = *o.p.block;
    const std::int32_t* const lines = b.indices + piece.first;
    const Scalar* const terms = static_cast<const Scalar*>(o.sums.terms);
    const std::int64_t bytes =
        o.group.count * b.head_width * static_cast<std::int64_t>(sizeof(Scalar));
    const std::int64_t ahead = prefetch_distance(bytes), lines_ahead = (bytes + 63) / 64;
    const bool fetching = kStep > 1 && grads.known >= piece.count + ahead;
    const bool foreseeing = b.num_nonzeros - piece.first >= piece.count + kTermsAhead;
    for (std::int64_t e = 0; e < piece.count; ++e) {
      if (fetching) grads.prefetch(e + ahead, 0, lines_ahead);
      if (foreseeing) __builtin_prefetch(terms + lines[e + kTermsAhead] * kTerms * kStep);
      const Scalar* const from = terms + lines[e] * kTerms * kStep;
      const std::int64_t at = piece.slot + e * kStep;
      copy_heads<kStep>(from, edges.sums.at + at);
      copy_heads<kStep>(from + kStep, edges.lse.at + at);
      copy_heads<kStep>(from + 2 * kStep, edges.delta.at + at);
      if constexpr (kStep > 1) {
        const Scalar* const grad = grads.data + grads.index[e] * grads.pitch;
        for (std::int64_t head = 0; head < o.group.count; ++head)
          edges.dots.at[at + head] =
              dot<V>(grad + head * b.head_width, z + head * b.head_width, b.head_width);
      }
    }
  }

  /// Turn inner products into gradients; returns the sum of these for each head.
  HPCGNN_INLINE static Reg differentiate(const Operands& o, const LinePiece& piece, Edges& edges) {
    const AttentionBlock& b = *o.p.block;
    const Group& group = o.group;
    const std::int64_t numbers = piece.count * group.step;
    const auto name = [&](const std::uint64_t* streams, std::int64_t e) {
      return edge_name(streams[b.indices[piece.first + e]], b.column_ids[piece.line]);
    };
    Scalar* const kept = edges.kept.at + piece.slot;
    for (std::int64_t k = 0; k < numbers; k += V::kLanes) V::store(kept + k, V::broadcast(1));
    group.drop_weights(o.p, piece.count, name, kept);
    group.drop_edges(o.p.edges, piece.count, name, -Softmax<V>::kNone, edges.lse.at + piece.slot);
    const Reg slope = V::broadcast(static_cast<Scalar>(b.slope));
    const Reg source =
        group.spread(static_cast<const Scalar*>(b.source) + piece.line * b.num_heads + group.first);
    Reg sum = V::zero();
    for (std::int64_t k = 0; k < numbers; k += V::kLanes) {
      const std::int64_t at = piece.slot + k;
      const Reg before = V::add(V::load(edges.sums.at + at), source);
      const Reg logit = Softmax<V>::rectified(before, slope);
      const Reg alpha = Softmax<V>::share(logit, V::load(edges.lse.at + at));
      const Reg inner = V::mul(V::load(kept + k), V::load(edges.dots.at + at));
      const Reg outer = V::mul(alpha, V::sub(inner, V::load(edges.delta.at + at)));
      const Reg found = V::choose_less(V::zero(), before, outer, V::mul(slope, outer));
      V::store(edges.dots.at + at, found);
      V::store(kept + k, V::mul(alpha, V::load(kept + k)));
      sum = V::add(sum, found);
    }
    return group.fold(sum, [](Reg x, Reg y) { return V::add(x, y); });
  }

  /// Add the terms of the edges of a piece to the gradients of z and source, each rounded.
  HPCGNN_INLINE static void add_rounded(const Operands& o, const LinePiece& piece,
                                        const BatchRows<Scalar>& grads, const Edges& edges) {
    const AttentionBlock& b = *o.p.block;
    const RoundedSums sums = sums_of_line(o.sums.rounded, piece.line);
    for (std::int64_t head = 0; head < o.group.count; ++head)
      for (std::int64_t e = 0; e < piece.count; ++e) {
        const std::int64_t at = piece.slot + e * o.group.step + head;
        const Scalar* const grad = grads.data + grads.index[e] * grads.pitch + head * b.head_width;
        const double share = edges.kept.at[at], through = edges.dots.at[at];
        const std::int64_t number = o.group.first + head;
        sums.add(number * b.head_width, b.head_width,
                 [&](std::int64_t c) { return share * grad[c]; });
        sums.add(b.num_heads * b.head_width + number, 1, [&](std::int64_t) { return through; });
      }
  }

  /// Add the gradients of targets, and of scores of edges.
  HPCGNN_INLINE static void add_to_edges(const Operands& o, const LinePiece& piece,
                                         const Scalar* dots) {
    const AttentionBlock& b = *o.p.block;
    const Group& group = o.group;
    const std::int32_t* const lines = b.indices + piece.first;
    Scalar* const dtarget = static_cast<Scalar*>(o.sums.dtarget);
    with_step<V>(group.step, [&]<int kStep>() {
      for (std::int64_t e = 0; e < piece.count; ++e)
        add_heads<kStep>(dots + e * kStep, dtarget + lines[e] * kStep);
    });
    auto* const dedges = static_cast<Scalar*>(o.sums.dedges);
    if (dedges == nullptr) return;
    for (std::int64_t e = 0; e < piece.count; ++e)
      for (std::int64_t head = 0; head < group.count; ++head)
        dedges[(piece.first + e) * b.num_heads + group.first + head] = dots[e * group.step + head];
  }

  static void run(const AttentionProblem& p, const AttentionTask& task, const AdditiveSums& sums) {
    const AttentionBlock& b = *p.block;
    const Group group(task);
    const Operands operands{p, sums, group};
    const std::int64_t width = group.count * b.head_width, pitch = b.num_heads * b.head_width;
    const std::int64_t first_column = group.first * b.head_width;
    const HeadsOfColumns<V> heads(group.count, b.head_width);
    StateRows rows(b, b.head_width * static_cast<std::int64_t>(sizeof(Scalar)));
    Edges edges;
    Numbers gains;
    for_chunks<V>(b, b.num_columns, task, cached_batch<V, Scalar>(width), [&](EdgeChunk<V>& chunk) {
      const std::int32_t* const index = rows.find(chunk.first, chunk.count);
      const std::int64_t known = rows.known(chunk.first, chunk.count);
      const auto grads_of = [&](const LinePiece& piece) {
        const std::int64_t before = piece.first - chunk.first;
        return BatchRows<Scalar>{static_cast<const Scalar*>(sums.grad) + first_column, pitch,
                                 index + before, piece.count, known - before};
      };
      for (const LinePiece& piece : chunk) gather(operands, piece, grads_of(piece), edges);
      for (const LinePiece& piece : chunk)
        V::store(gains.at + chunk.number(piece) * V::kLanes, differentiate(operands, piece, edges));
      for (const LinePiece& piece : chunk) {
        const Reg gain = V::load(gains.at + chunk.number(piece) * V::kLanes);
        Scalar* const dsource =
            (piece.cut ? static_cast<Scalar*>(sums.carry_dsource)
                       : static_cast<Scalar*>(sums.dsource) + piece.line * b.num_heads) +
            group.first;
        V::store(dsource, V::add(V::load(dsource, group.mask), gain), group.mask);
        add_to_edges(operands, piece, edges.dots.at + piece.slot);
        if (sums.rounded.sums != nullptr) add_rounded(operands, piece, grads_of(piece), edges);
        if (sums.dz == nullptr) continue;
        Scalar* const dz = (piece.cut ? static_cast<Scalar*>(sums.carry_dz)
                                      : static_cast<Scalar*>(sums.dz) + piece.line * pitch) +
                           first_column;
        BatchRows<Scalar> cached = grads_of(piece);
        cached.shift = chunk.count;
        const WeightsOfHeads<V> weights{edges.kept.at + piece.slot, group.step, heads};
        for_columns<V>(width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
          if (group.step == 1)
            weighted_sum<V, Scalar, kRegs, kTail>(cached, weights.at, 1, dz, column, tail);
          else
            add_weighted<V, Scalar, kRegs, kTail>(cached, weights, dz, column, tail);
        });
        if (sums.weights == nullptr) continue;
        // source = <weights, z>: its gradient adds to those of z and of the weights.
        const Scalar* const factors = static_cast<const Scalar*>(sums.weights) + first_column;
        Scalar* const dfactors = static_cast<Scalar*>(sums.dweights) + first_column;
        const X* const z = static_cast<const X*>(b.values) + piece.line * pitch + first_column;
        for_columns<V>(width, [&]<int kRegs, bool kTail>(std::int64_t column, int tail) {
          add_multiples<V, Scalar, kRegs, kTail>(gain, heads, factors, dz, column, tail);
          add_multiples<V, X, kRegs, kTail>(gain, heads, z, dfactors, column, tail);
        });
      }
    });
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
