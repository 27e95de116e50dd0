/// Sums of numbers that are rounded one by one, so that their order does not matter.
#pragma once

#include <cstdint>

#include "exact/exact.h"

namespace hpcgnn::kernels {

/// The sums of a line: `pitch` columns, once for each digit.
struct RoundedSums {
  double* row;
  const double* scale;
  std::int64_t pitch;
  int digits, bits;

  /// Adds number(c), in float64, to some columns; see AttentionSums.
  template <class Number>
  HPCGNN_INLINE void add(std::int64_t first, std::int64_t width, const Number& number) const {
    double* const __restrict out = row + first;
    const double* const scales = scale + first;
    if (digits == 1) {
      for (std::int64_t c = 0; c < width; ++c)
        out[c] += (number(c) * scales[c] + kRounder) - kRounder;
      return;
    }
    const double more = static_cast<double>(std::int64_t{1} << bits);
    for (std::int64_t c = 0; c < width; ++c) {
      double left = number(c) * scales[c];
      for (int d = 0; d < digits; ++d) {
        const double rounded = (left + kRounder) - kRounder;
        out[d * pitch + c] += rounded;
        left = (left - rounded) * more;
      }
    }
  }
};

/// The sums of line j.
HPCGNN_INLINE RoundedSums sums_of_line(const AttentionSums& s, std::int64_t j) {
  return {s.sums + j * s.width * s.digits, s.scale, s.width, s.digits, s.bits};
}

}  // namespace hpcgnn::kernels
