/// Random bits that are a function of keys and ids: the same on every rank, thread and pass.
#pragma once

#include <cmath>
#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

/// The step of SplitMix64 sequences.
inline constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;

/// The output function of SplitMix64.
HPCGNN_INLINE std::uint64_t mix_bits(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// The start of the sequence of a row: mixing key and row in turn keeps the sequences of
/// neighbouring rows and keys apart.
HPCGNN_INLINE std::uint64_t row_stream(std::uint64_t key, std::int64_t row_id) {
  return mix_bits(mix_bits(key + kGolden) + static_cast<std::uint64_t>(row_id) * kGolden);
}

/// 32 random bits below this mean "dropped", with probability p to within 2^-32.
inline std::uint64_t drop_threshold(double p) {
  return static_cast<std::uint64_t>(std::ldexp(p, 32) + 0.5);
}

}  // namespace hpcgnn::kernels
