/// Sums over a batch of edges for the columns of one head: the loops that read the rows.
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "attention/softmax.h"
#include "types.h"

namespace hpcgnn::kernels {

// Measured for the products: a core keeps about this many line fills in flight.
inline constexpr std::int64_t kLineFills = 96;

/// Number of edges that prefetching runs ahead, for `bytes` of each row.
constexpr std::int64_t prefetch_distance(std::int64_t bytes) {
  const std::int64_t lines = (bytes + 63) / 64;
  return (kLineFills + lines - 1) / lines;
}

/// The rows of a batch: entry e is row index[e] of `data`, `pitch` elements apart. The first
/// `known` entries of `index` may be read, those after the batch to prefetch.
template <class X>
struct BatchRows {
  const X* data;
  std::int64_t pitch;
  const std::int32_t* index;
  std::int64_t count;
  std::int64_t known;
  std::int64_t shift = 0;  ///< edges that prefetching runs ahead beyond the usual distance

  HPCGNN_INLINE void prefetch(std::int64_t e, std::int64_t column, std::int64_t lines) const {
    const char* const next = reinterpret_cast<const char*>(data + index[e] * pitch + column);
    for (std::int64_t line = 0; line < lines; ++line) __builtin_prefetch(next + line * 64);
  }
};

/// Calls body.template operator()<kRegs, kTail>(column, tail_lanes) for blocks of up to kMost
/// registers that cover `width` columns; with kTail the last register is partial.
template <class V, int kRegs, class Body>
HPCGNN_INLINE void dispatch_columns(int regs, std::int64_t column, int tail, const Body& body) {
  if (regs == kRegs)
    tail > 0 ? body.template operator()<kRegs, true>(column, tail)
             : body.template operator()<kRegs, false>(column, 0);
  else if constexpr (kRegs > 1)
    dispatch_columns<V, kRegs - 1>(regs, column, tail, body);
}

template <class V, int kMost = kColumnRegs, class Body>
HPCGNN_INLINE void for_columns(std::int64_t width, const Body& body) {
  for (std::int64_t column = 0; column < width; column += kMost * V::kLanes) {
    const std::int64_t left = width - column;
    const std::int64_t wanted = (left + V::kLanes - 1) / V::kLanes;
    const int regs = wanted < kMost ? static_cast<int>(wanted) : kMost;
    const int tail = left < regs * V::kLanes ? static_cast<int>(left % V::kLanes) : 0;
    dispatch_columns<V, kMost>(regs, column, tail, body);
  }
}

/// The first kRegs registers at p, the last one partial with kTail.
template <class V, int kRegs, bool kTail, class X>
HPCGNN_INLINE void load_columns(const X* p, typename V::Mask tail, typename V::Reg (&regs)[kRegs]) {
  constexpr int kFull = kTail ? kRegs - 1 : kRegs;
  for (int r = 0; r < kFull; ++r) regs[r] = V::load(p + r * V::kLanes);
  if constexpr (kTail) regs[kFull] = V::load(p + kFull * V::kLanes, tail);
}

template <class V, int kRegs, bool kTail, class X>
HPCGNN_INLINE void store_columns(X* p, typename V::Mask tail,
                                 const typename V::Reg (&regs)[kRegs]) {
  constexpr int kFull = kTail ? kRegs - 1 : kRegs;
  for (int r = 0; r < kFull; ++r) V::store(p + r * V::kLanes, regs[r]);
  if constexpr (kTail) V::store(p + kFull * V::kLanes, regs[kFull], tail);
}

/// <a, b> of two rows.
template <class V, class X>
HPCGNN_INLINE typename V::Scalar dot(const typename V::Scalar* a, const X* b, std::int64_t width) {
  typename V::Reg sum = V::zero();
  std::int64_t c = 0;
  for (; c + V::kLanes <= width; c += V::kLanes) sum = V::fma(V::load(a + c), V::load(b + c), sum);
  const auto tail = V::mask(static_cast<int>(width - c));
  if (c < width) sum = V::fma(V::load(a + c, tail), V::load(b + c, tail), sum);
  return V::sum(sum);
}

/// out = scale * out + sum over e of weights[e] * row e; a scale of 0 does not read out.
template <class V, class X, int kRegs, bool kTail>
void weighted_sum(const BatchRows<X>& batch, const typename V::Scalar* weights,
                  typename V::Scalar scale, typename V::Scalar* out, std::int64_t column,
                  int tail_lanes) {
  using Reg = typename V::Reg;
  constexpr std::int64_t kBytes = std::int64_t{kRegs} * V::kLanes * sizeof(X);
  constexpr std::int64_t kDistance = prefetch_distance(kBytes);
  const auto tail = V::mask(tail_lanes);
  const BatchRows<X> b = batch;
  Reg sum[kRegs];
  if (scale == 0) {
    for (Reg& reg : sum) reg = V::zero();
  } else {
    load_columns<V, kRegs, kTail>(out + column, tail, sum);
    for (Reg& reg : sum) reg = V::mul(V::broadcast(scale), reg);
  }
  // A second walk over cached rows prefetches half of each next row, its first walk the rest.
  constexpr std::int64_t kLines = (kBytes + 63) / 64;
  const std::int64_t distance = b.shift + kDistance, lines = b.shift > 0 ? kLines / 2 : kLines;
  const bool fetching = b.known >= b.count + distance;
  for (std::int64_t e = 0; e < b.count; ++e) {
    if (fetching) b.prefetch(e + distance, column, lines);
    const Reg weight = V::broadcast(weights[e]);
    Reg row[kRegs];
    load_columns<V, kRegs, kTail>(b.data + b.index[e] * b.pitch + column, tail, row);
    for (int r = 0; r < kRegs; ++r) sum[r] = V::fma(weight, row[r], sum[r]);
  }
  store_columns<V, kRegs, kTail>(out + column, tail, sum);
}

/// dots[e] (+)= <row e, fixed>, overwriting in the first block of columns.
template <class V, class X, class Fixed, int kRegs, bool kTail>
void inner_products(const BatchRows<X>& batch, const Fixed* fixed, typename V::Scalar* dots,
                    std::int64_t column, int tail_lanes) {
  using Reg = typename V::Reg;
  constexpr std::int64_t kBytes = std::int64_t{kRegs} * V::kLanes * sizeof(X);
  constexpr std::int64_t kDistance = prefetch_distance(kBytes);
  const auto tail = V::mask(tail_lanes);
  const BatchRows<X> b = batch;
  Reg factor[kRegs];
  load_columns<V, kRegs, kTail>(fixed + column, tail, factor);
  const bool fetching = b.known >= b.count + kDistance;
  for (std::int64_t e = 0; e < b.count; ++e) {
    if (fetching) b.prefetch(e + kDistance, column, (kBytes + 63) / 64);
    Reg row[kRegs];
    load_columns<V, kRegs, kTail>(b.data + b.index[e] * b.pitch + column, tail, row);
    Reg sum = V::mul(factor[0], row[0]);
    for (int r = 1; r < kRegs; ++r) sum = V::fma(factor[r], row[r], sum);
    dots[e] = column == 0 ? V::sum(sum) : dots[e] + V::sum(sum);
  }
}

/// Edges whose rows of `head_width` elements of type T fit the level-1 cache between two uses.
template <class V, class T>
HPCGNN_INLINE std::int64_t cached_batch(std::int64_t head_width) {
  constexpr std::int64_t kBytes = 16 << 10;
  const std::int64_t fitting = kBytes / static_cast<std::int64_t>(sizeof(T)) / head_width;
  const std::int64_t whole = fitting / V::kLanes * V::kLanes;
  return whole > kBatch ? kBatch : whole < V::kLanes ? V::kLanes : whole;
}

/// The rows of the state for consecutive edges of a transposed pattern: those of a batch and those
/// to prefetch.
class StateRows {
 public:
  HPCGNN_INLINE StateRows(const AttentionBlock& b, std::int64_t row_bytes)
      : b_(b), ahead_(prefetch_distance(row_bytes < kMostBytes ? row_bytes : kMostBytes)) {}

  /// Known entries from edge `first` on, for a batch of `count`.
  HPCGNN_INLINE std::int64_t known(std::int64_t first, std::int64_t count) const {
    const std::int64_t left = b_.num_nonzeros - first, wanted = 2 * count + ahead_;
    return left < wanted ? left : wanted;
  }

  HPCGNN_INLINE const std::int32_t* find(std::int64_t first, std::int64_t count) {
    if (b_.rows == nullptr) return b_.indices + first;
    const std::int64_t entries = known(first, count);
    for (std::int64_t e = 0; e < entries; ++e) buffer_[e] = b_.rows[b_.indices[first + e]];
    return buffer_;
  }

 private:
  static constexpr std::int64_t kMostBytes = 512;

  const AttentionBlock& b_;
  std::int64_t ahead_;
  std::int32_t buffer_[2 * kBatch + kLineFills];
};

}  // namespace hpcgnn::kernels
