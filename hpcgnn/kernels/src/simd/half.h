/// Conversions between 16-bit or integer storage and float32, one element at a time.
///
/// Narrowing rounds to nearest, ties to even, as the vector instructions do; a NaN stays a NaN in
/// 16 bits.
#pragma once

#include <bit>
#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels::half {

HPCGNN_INLINE float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

HPCGNN_INLINE BFloat16 to_bfloat16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return {static_cast<std::uint16_t>((bits >> 16) | 0x0040u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

HPCGNN_INLINE float to_float(Float16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13) |
                                (magnitude > 0x7c00u ? 0x400000u : 0u));
  // Scaling by 2^112 moves the exponent bias from 15 to 127, subnormals included.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

HPCGNN_INLINE Float16 to_float16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half_bits;
  if (magnitude > 0x7f800000u) {
    half_bits = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {
    half_bits = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    // Adding 0.5 aligns a subnormal result with the last bits of the sum, which then rounds it.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    half_bits = std::bit_cast<std::uint32_t>(sum) - 0x3f000000u;
  } else {
    half_bits = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return {static_cast<std::uint16_t>(sign | half_bits)};
}

/// Read an element as the accumulator type `T`.
template <class T>
HPCGNN_INLINE T widen(T value) {
  return value;
}
template <class T>
HPCGNN_INLINE T widen(std::int32_t value) {
  return static_cast<T>(value);
}
template <class T>
HPCGNN_INLINE T widen(BFloat16 value) {
  return to_float(value);
}
template <class T>
HPCGNN_INLINE T widen(Float16 value) {
  return to_float(value);
}

/// Write an accumulator to an element.
HPCGNN_INLINE void narrow(float value, float& out) { out = value; }
HPCGNN_INLINE void narrow(double value, double& out) { out = value; }
HPCGNN_INLINE void narrow(float value, BFloat16& out) { out = to_bfloat16(value); }
HPCGNN_INLINE void narrow(float value, Float16& out) { out = to_float16(value); }
HPCGNN_INLINE void narrow(float value, std::int8_t& out) {
  // The sum is rounded to an integer, which its low bits then hold.
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value + 12582912.0f);
  out = static_cast<std::int8_t>(bits & 255u);
}

}  // namespace hpcgnn::kernels::half
