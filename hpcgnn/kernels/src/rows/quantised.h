/// Rows of 8, 4 or 2 bits for each element, for exchanges: rounded at random to a grid of levels
/// for each row.
#pragma once

#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

/// A packed row: a head with its lowest level and the step between levels, then a level for each
/// element.
///
/// The levels low + q step, q < 2^bits, span the row; an element becomes one of the two next to it,
/// the nearer the likelier, so that its expectation is the element (to 2^-16 of a step). Which one
/// depends only on (key, row_ids[i], c) and the row: the same at any number of ranks and threads.
/// In a head of 8 or 4 bits low and step are bfloat16. A row of 2 bits consists of parts of 64
/// elements, each packed separately, since fewer elements have a smaller span. Their heads are half
/// as long: a step of 4 significant bits in the upper 11 bits, and in the lower 5 the number of
/// eighths of a step, 0 to 24, by which low is below 0; these levels also span 0. A step has at
/// most 8 significant bits, so that q step is exact and equal for every instruction set. A byte of
/// 4 bits has element c in its lower half and element c + h in its upper, h = (width + 1) / 2; one
/// of 2 bits has c, c + (h + 1) / 2, and these two + h. All elements of a row or part arrive as NaN
/// if one of them, or their span, is not finite.
///
/// With 2 bits and levels below 0, the reader subtracts the random number that was added before
/// rounding down, which it can draw again: the error then has half the variance (subtractive
/// dither: Schuchman, IEEE Transactions on Communication Technology 12, 1964). This would turn the
/// zeros of a rectifier into noise, so levels that begin at 0 are read without it.
struct QuantisedArguments {
  const void* source;           ///< num_rows by width; for dequantise packed rows
  void* out;                    ///< packed rows; for dequantise num_rows by width
  std::int64_t pitch;           ///< elements from one unpacked row to the next
  std::int64_t packed_pitch;    ///< bytes from one packed row to the next
  const std::int64_t* row_ids;  ///< names of the rows
  std::int64_t num_rows;
  std::int64_t width;
  std::uint64_t key;
  int bits;         ///< 8, 4 or 2
  Storage storage;  ///< of the unpacked rows: float32 or bfloat16
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
