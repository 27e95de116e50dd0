/// Numbers for the edges of some lines and the heads of a group, and weighted sums of rows.
#pragma once

#include <cstdint>
#include <cstring>

#include "attention/columns.h"
#include "attention/problem.h"
#include "attention/softmax.h"

namespace hpcgnn::kernels {

/// Some edges of a line (row, or column of the transpose). Their numbers begin at `slot`, one edge
/// after the other, and fill whole registers up to the next slot.
struct LinePiece {
  std::int64_t line, first, count, slot;
  bool cut;    ///< the task begins inside the line, and this piece is in its first part
  bool fresh;  ///< this piece is the first of its line
};

template <class V>
struct HeadGroup {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;
  static constexpr std::int64_t kNumbers = 512;

  /// Numbers of the edges of a chunk, padded so that the last can be accessed as a register.
  struct alignas(64) Numbers {
    Scalar at[kNumbers + V::kLanes];
  };

  std::int64_t index, first, count, step;
  typename V::Mask mask;

  explicit HeadGroup(const AttentionTask& task)
      : index(task.first_head / task.group),
        first(task.first_head),
        count(task.last_head - task.first_head),
        step(head_step(task.group)),
        mask(V::mask(static_cast<int>(count))) {
    for (int lane = 0; lane < V::kLanes; ++lane) {
      const std::int64_t head = lane % step;
      repeated_[lane] = static_cast<std::int32_t>(head < count ? head : 0);
    }
    for (int lane = 0; lane < 2 * V::kLanes; ++lane) {
      turned_[lane] = lane % V::kLanes;
      none_[lane] = lane < V::kLanes ? Scalar(0) : Softmax<V>::kNone;
    }
  }

  /// Numbers of the heads, repeated to fill all lanes.
  HPCGNN_INLINE Reg spread(const Scalar* of_heads) const {
    return V::arrange(V::load(of_heads, mask), V::order(repeated_));
  }

  /// Reduce the lanes of each head; every lane then has the result of its head.
  template <class Join>
  HPCGNN_INLINE Reg fold(Reg lanes, const Join& join) const {
    for (std::int64_t turn = V::kLanes / 2; turn >= step; turn /= 2)
      lanes = join(lanes, V::arrange(lanes, V::order(turned_ + turn)));
    return lanes;
  }

  /// Zeros in the first `lanes` lanes, -inf in the others.
  HPCGNN_INLINE Reg none_behind(std::int64_t lanes) const {
    return V::load(none_ + V::kLanes - lanes);
  }

  /// Add the edges' own scores.
  HPCGNN_INLINE void add_edges(const AttentionBlock& b, const LinePiece& piece,
                               Scalar* sums) const {
    if (b.edges == nullptr) return;
    const Scalar* const scores =
        static_cast<const Scalar*>(b.edges) + piece.first * b.num_heads + first;
    for (std::int64_t e = 0; e < piece.count; ++e)
      for (std::int64_t head = 0; head < count; ++head)
        sums[e * step + head] += scores[e * b.num_heads + head];
  }

  /// Give edges that are left out the number `gone`; name(streams, e) is the edge_name.
  template <class Name>
  HPCGNN_INLINE void drop_edges(const DropoutBits& bits, std::int64_t num_edges, const Name& name,
                                Scalar gone, Scalar* numbers) const {
    if (bits.streams == nullptr) return;
    for (std::int64_t e = 0; e < num_edges; ++e)
      if (Softmax<V>::dropped(bits, name(bits.streams, e), 0))
        for (std::int64_t head = 0; head < count; ++head) numbers[e * step + head] = gone;
  }

  /// Multiply numbers with 0 or 1 / (1 - p).
  template <class Name>
  HPCGNN_INLINE void drop_weights(const AttentionProblem& p, std::int64_t num_edges,
                                  const Name& name, Scalar* numbers) const {
    if (p.weights.streams == nullptr) return;
    const Scalar scale = static_cast<Scalar>(1 / (1 - p.block->weight_dropout.p));
    for (std::int64_t e = 0; e < num_edges; ++e)
      for (std::int64_t head = 0; head < count; ++head) {
        Scalar& number = numbers[e * step + head];
        const bool gone = Softmax<V>::dropped(p.weights, name(p.weights.streams, e), first + head);
        number = gone ? Scalar(0) : number * scale;
      }
  }

 private:
  std::int32_t repeated_[V::kLanes], turned_[2 * V::kLanes];
  Scalar none_[2 * V::kLanes];
};

/// Calls body.template operator()<kStep>() with the `head_step` of a group as a constant kStep.
template <class V, int kStep = V::kLanes, class Body>
HPCGNN_INLINE void with_step(std::int64_t step, const Body& body) {
  if (step == kStep)
    body.template operator()<kStep>();
  else if constexpr (kStep > 1)
    with_step<V, kStep / 2>(step, body);
}

/// Copy the numbers of all heads of a group; registers would also read other cache lines.
template <int kStep, class T>
HPCGNN_INLINE void copy_heads(const T* from, T* to) {
  std::memcpy(to, from, kStep * sizeof(T));
}

/// to += from, for all heads of a group.
template <int kStep, class T>
HPCGNN_INLINE void add_heads(const T* from, T* to) {
  T sums[kStep];
  for (int head = 0; head < kStep; ++head) sums[head] = to[head] + from[head];
  copy_heads<kStep>(sums, to);
}

/// Pieces of lines with consecutive edges, whose numbers fit the level-1 cache.
template <class V>
class EdgeChunk {
 public:
  std::int64_t first = 0, count = 0;

  LinePiece* begin() { return pieces_; }
  LinePiece* end() { return pieces_ + size_; }
  const LinePiece* begin() const { return pieces_; }
  const LinePiece* end() const { return pieces_ + size_; }
  std::int64_t number(const LinePiece& piece) const { return &piece - pieces_; }

  /// Whether there is room for a piece of `edges` edges with `numbers` numbers.
  bool fits(std::int64_t edges, std::int64_t numbers, std::int64_t most_edges) const {
    return size_ == 0 || (count + edges <= most_edges && numbers_ + numbers <= kNumbers);
  }

  void add(const LinePiece& piece, std::int64_t numbers) {
    if (size_ == 0) first = piece.first;
    pieces_[size_] = piece;
    pieces_[size_++].slot = numbers_;
    count += piece.count;
    numbers_ += numbers;
  }

  void clear() { size_ = count = numbers_ = 0; }

 private:
  static constexpr std::int64_t kNumbers = HeadGroup<V>::kNumbers;

  LinePiece pieces_[kNumbers / V::kLanes];
  std::int64_t size_ = 0, numbers_ = 0;
};

/// Calls body(chunk) for the edges of a task, at most `longest` together, as `for_pieces`.
template <class V, class Body>
HPCGNN_INLINE void for_chunks(const AttentionBlock& b, std::int64_t num_lines,
                              const AttentionTask& task, std::int64_t longest, const Body& body) {
  const std::int64_t step = head_step(task.group);
  const std::int64_t fitting = HeadGroup<V>::kNumbers / step;
  longest = longest < fitting ? longest : fitting;
  EdgeChunk<V> chunk;
  const auto add = [&](std::int64_t line, std::int64_t first, std::int64_t count, bool cut) {
    const std::int64_t numbers = (count * step + V::kLanes - 1) / V::kLanes * V::kLanes;
    if (!chunk.fits(count, numbers, longest)) {
      body(chunk);
      chunk.clear();
    }
    chunk.add({line, first, count, 0, cut, false}, numbers);
  };
  for_pieces(b, num_lines, task, longest, add);
  if (chunk.count > 0) body(chunk);
}

/// The head of a group that each column belongs to.
template <class V>
class HeadsOfColumns {
 public:
  HPCGNN_INLINE HeadsOfColumns(std::int64_t num_heads, std::int64_t head_width)
      : several_(num_heads > 1) {
    for (std::int32_t& head : heads_) head = 0;
    for (std::int64_t c = 0; several_ && c < num_heads * head_width; ++c)
      heads_[c] = static_cast<std::int32_t>(c / head_width);
  }

  /// The heads of a register of columns.
  HPCGNN_INLINE typename V::Order of(std::int64_t column) const {
    return V::order(heads_ + (several_ ? column : 0));
  }

 private:
  // Several heads have at most kGroupBytes, in elements of 16 bits.
  std::int32_t heads_[128 + kOverread];
  bool several_;
};

/// The weights of rows: a number for each edge and head, edges `step` apart; and `scale`, a factor
/// for the previous sum, null = 1. With `fresh` there is no previous sum.
template <class V>
struct WeightsOfHeads {
  const typename V::Scalar* at;
  std::int64_t step;
  const HeadsOfColumns<V>& heads;
  const typename V::Scalar* scale = nullptr;
  bool fresh = false;
};

/// out = scale * out + sum over e of weights * row e.
template <class V, class X, int kRegs, bool kTail>
void add_weighted(const BatchRows<X>& batch, const WeightsOfHeads<V>& weights,
                  typename V::Scalar* out, std::int64_t column, int tail_lanes) {
  using Reg = typename V::Reg;
  constexpr std::int64_t kBytes = std::int64_t{kRegs} * V::kLanes * sizeof(X);
  constexpr std::int64_t kDistance = prefetch_distance(kBytes);
  const auto tail = V::mask(tail_lanes);
  const BatchRows<X> b = batch;
  const WeightsOfHeads<V> w = weights;
  typename V::Order orders[kRegs];
  for (int r = 0; r < kRegs; ++r) orders[r] = w.heads.of(column + r * V::kLanes);
  Reg sum[kRegs];
  if (w.fresh) {
    for (Reg& reg : sum) reg = V::zero();
  } else {
    load_columns<V, kRegs, kTail>(out + column, tail, sum);
    // A sum with a factor of zero may be NaN.
    for (int r = 0; w.scale != nullptr && r < kRegs; ++r) {
      const Reg scale = V::arrange(V::load(w.scale), orders[r]);
      sum[r] = V::choose_less(V::zero(), scale, V::mul(scale, sum[r]), V::zero());
    }
  }
  // A second walk over cached rows prefetches half of each next row, its first walk the rest.
  constexpr std::int64_t kLines = (kBytes + 63) / 64;
  const std::int64_t distance = b.shift + kDistance, lines = b.shift > 0 ? kLines / 2 : kLines;
  const bool fetching = b.known >= b.count + distance;
  for (std::int64_t e = 0; e < b.count; ++e) {
    if (fetching) b.prefetch(e + distance, column, lines);
    const Reg weight = V::load(w.at + e * w.step);
    Reg row[kRegs];
    load_columns<V, kRegs, kTail>(b.data + b.index[e] * b.pitch + column, tail, row);
    for (int r = 0; r < kRegs; ++r) sum[r] = V::fma(V::arrange(weight, orders[r]), row[r], sum[r]);
  }
  store_columns<V, kRegs, kTail>(out + column, tail, sum);
}

/// out += factors of heads * row.
template <class V, class X, int kRegs, bool kTail>
HPCGNN_INLINE void add_multiples(typename V::Reg factors, const HeadsOfColumns<V>& heads,
                                 const X* row, typename V::Scalar* out, std::int64_t column,
                                 int tail_lanes) {
  using Reg = typename V::Reg;
  const auto tail = V::mask(tail_lanes);
  Reg sum[kRegs], added[kRegs];
  load_columns<V, kRegs, kTail>(out + column, tail, sum);
  load_columns<V, kRegs, kTail>(row + column, tail, added);
  for (int r = 0; r < kRegs; ++r) {
    const Reg factor = V::arrange(factors, heads.of(column + r * V::kLanes));
    sum[r] = V::fma(factor, added[r], sum[r]);
  }
  store_columns<V, kRegs, kTail>(out + column, tail, sum);
}

}  // namespace hpcgnn::kernels
