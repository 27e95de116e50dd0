/// Dropout whose mask is a function of names, not of a generator's state.
#pragma once

#include <cstdint>

namespace hpcgnn::kernels {

/// out[i, c] = 0 with probability p, else x[i, c] / (1 - p).
///
/// Whether element (i, c) is dropped depends on (key, row_ids[i], c) alone: the same at any number
/// of ranks and threads, in float32 and in float64, and in the backward pass. The random bits are
/// the outputs of SplitMix64 streams, one a row, 32 bits an element. `out` may be `x`.
/// @pre 0 <= p <= 1; p = 1 drops everything.
template <class T>
void dropout_rows(const T* x, const std::int64_t* row_ids, std::int64_t num_rows,
                  std::int64_t width, std::uint64_t key, double p, T* out, int num_threads);

}  // namespace hpcgnn::kernels
