/// Rows in 8, 4 or 2 bits an element, for exchanges: a grid of levels for each row, rounded at
/// random.
#pragma once

#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

/// A packed row: a head that says its lowest level and the step between two, and a level an
/// element.
///
/// The levels low + q step, q < 2^bits, span the row; an element becomes one of the two next to it,
/// the nearer the likelier, so that its expectation is the element (to 2^-16 of a step). Which one
/// depends on (key, row_ids[i], c) and the row alone: the same at any number of ranks and threads.
/// In a head of 8 or 4 bits low and step are bfloat16. A row of 2 bits is parts of 64 elements,
/// each packed alone: of fewer elements the span is less. Their heads are half as long: a step of 4
/// significant bits in the upper 11 bits, and in the lower 5 how many eighths of a step low is
/// below 0, 0 to 24; the levels span 0 as well. A step has at most 8 significant bits, so that q
/// step is exact and every instruction set agrees. A byte of 4 bits holds element c in its lower
/// half and element c + h in its upper, h = (width + 1) / 2; one of 2 bits has c, c + (h + 1) / 2,
/// and these two + h. What is packed with an element that is not finite, or a span that is not,
/// arrives as NaN.
///
/// Where 2 bits have levels below 0, whoever reads them takes away what was added before rounding
/// down, which any reader can draw again: the error has half the variance (subtractive dither:
/// Schuchman, IEEE Transactions on Communication Technology 12, 1964). Zeros of a rectifier would
/// become noise by it; their levels begin at 0, and are read as they are.
struct QuantisedArguments {
  const void* source;           ///< num_rows by width; of dequantise packed rows
  void* out;                    ///< packed rows; of dequantise num_rows by width
  std::int64_t pitch;           ///< elements from a row that is not packed to the next
  std::int64_t packed_pitch;    ///< bytes from a packed row to the next
  const std::int64_t* row_ids;  ///< names of the rows
  std::int64_t num_rows;
  std::int64_t width;
  std::uint64_t key;
  int bits;         ///< 8, 4 or 2
  Storage storage;  ///< of the rows that are not packed: float32 or bfloat16
  int num_threads;  ///< 0 = OpenMP default
  Isa isa;
};

/// Elements of a row of 2 bits that share a head.
constexpr std::int64_t kPartWidth = 64;

/// Bytes of a head.
constexpr std::int64_t head_bytes(int bits) { return bits == 2 ? 2 : 4; }

/// Bytes of a packed row.
constexpr std::int64_t quantised_bytes(std::int64_t width, int bits) {
  const std::int64_t heads = bits == 2 ? (width + kPartWidth - 1) / kPartWidth : width > 0;
  return heads * head_bytes(bits) + (width * bits + 7) / 8;
}

/// See QuantisedArguments.
void quantise_rows(const QuantisedArguments& arguments);
void dequantise_rows(const QuantisedArguments& arguments);

/// Kernels by storage type, for rows [first, last); null where a type is not offered.
struct QuantisedTable {
  using Kernel = void (*)(const QuantisedArguments&, std::int64_t first, std::int64_t last);
  Kernel quantise[kNumStorages];
  Kernel dequantise[kNumStorages];
};

}  // namespace hpcgnn::kernels
