/// Sums over many rows by pieces of rows, for threads; their bits depend on the sizes only.
#pragma once

#include <algorithm>

#include "dense/products.h"
#include "parallel.h"

namespace hpcgnn::kernels {

/// With fewer operations of a product, threads cost more than they save.
inline constexpr std::int64_t kSerialOperations = 1 << 20;

/// How many rows there are, the least rows of a piece, and how many sums a piece has.
struct Pieces {
  std::int64_t num_rows, least, size;
};

/// Let `add(first, last, sums)` add the terms of rows [first, last) to its sums. Pieces of the rows
/// have sums of their own, which are added to `total` in order.
template <class T, class Add>
void add_by_pieces(const Pieces& p, int num_threads, T* total, const Add& add) {
  const std::int64_t num_rows = p.num_rows, size = p.size;
  /// Bounds on the pieces and on the numbers of all sums.
  constexpr std::int64_t kMost = 64, kElements = 1 << 20;
  const std::int64_t most = std::min(kMost, kElements / std::max<std::int64_t>(1, size));
  const std::int64_t count = std::min(most, (num_rows + p.least - 1) / p.least);
  if (count <= 1) {
    add(std::int64_t{0}, num_rows, total);
    return;
  }
  const std::int64_t rows = (num_rows + count - 1) / count;
  const Buffer pieces(count * size * static_cast<std::int64_t>(sizeof(T)));
  T* const sums = static_cast<T*>(pieces.get());
  parallel_tasks(num_threads, count, [&](std::int64_t piece) {
    T* const own = sums + piece * size;
    std::fill_n(own, size, T(0));
    add(std::min(num_rows, piece * rows), std::min(num_rows, (piece + 1) * rows), own);
  });
  for (std::int64_t piece = 0; piece < count; ++piece)
    for (std::int64_t k = 0; k < size; ++k) total[k] += sums[piece * size + k];
}

}  // namespace hpcgnn::kernels
