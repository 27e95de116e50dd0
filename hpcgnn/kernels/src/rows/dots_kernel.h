/// Dot products of rows, templates over the SIMD types; included once per instruction set.
#pragma once

#include <algorithm>

#include "rows/dots.h"
#include "simd/prefetch.h"

namespace hpcgnn::kernels {

template <class V>
struct RowDotsKernels {
  using T = typename V::Scalar;
  using Reg = typename V::Reg;
  // As many sums hide the latency of an addition; the order of a sum does not depend on it.
  static constexpr int kTogether = 8;

  static void dots(const RowDots& p, std::int64_t first, std::int64_t last) {
    const std::int64_t end = last * p.count;
    for (std::int64_t e = first; e < last; ++e) {
      const T* const query = static_cast<const T*>(p.queries) + e * p.width;
      std::int64_t entry = e * p.count;
      const std::int64_t stop = entry + p.count;
      for (; entry + kTogether <= stop; entry += kTogether) group<kTogether>(p, query, entry, end);
      for (; entry < stop; ++entry) group<1>(p, query, entry, end);
    }
  }

 private:
  /// Prefetches rows of a later group line by line, since a burst of prefetches would be dropped.
  template <int kRows>
  HPCGNN_INLINE static void group(const RowDots& p, const T* query, std::int64_t entry,
                                  std::int64_t end) {
    const T* const x = static_cast<const T*>(p.x);
    const T* rows[kRows];
    const T* later[kRows];
    Reg sums[kRows];
    for (int r = 0; r < kRows; ++r) {
      rows[r] = x + p.rows[entry + r] * p.width;
      later[r] = x + p.rows[std::min(entry + r + kTogether, end - 1)] * p.width;
      sums[r] = V::zero();
    }
    std::int64_t c = 0;
    for (; c + V::kLanes <= p.width; c += V::kLanes) {
      const Reg q = V::load(query + c);
      for (int r = 0; r < kRows; ++r) {
        prefetch_far(later[r], c);
        sums[r] = V::fma(q, V::load(rows[r] + c), sums[r]);
      }
    }
    if (c < p.width) {
      const auto tail = V::mask(static_cast<int>(p.width - c));
      const Reg q = V::load(query + c, tail);
      for (int r = 0; r < kRows; ++r) {
        prefetch_far(later[r], c);
        sums[r] = V::fma(q, V::load(rows[r] + c, tail), sums[r]);
      }
    }
    T* const out = static_cast<T*>(p.out) + entry;
    for (int r = 0; r < kRows; ++r) out[r] = V::sum(sums[r]);
  }
};

}  // namespace hpcgnn::kernels
