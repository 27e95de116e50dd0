/// Rows in 8 or 4 bits an element, for exchanges: a grid of levels for each row, rounded at random.
#pragma once

#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

/// A packed row: its lowest level and the step between two, both bfloat16, and a level an element.
///
/// The levels low + q step, q < 2^bits, span the row; an element becomes one of the two next to it,
/// the nearer the likelier, so that its expectation is the element (to 2^-16 of a step). Which one
/// depends on (key, row_ids[i], c) and the row alone: the same at any number of ranks and threads.
/// A step has 8 significant bits, so that q step is exact and every instruction set agrees. Of 4
/// bits, a byte holds element c in its lower half and c + (width + 1) / 2 in the upper. A row with
/// an element that is not finite, or a span that is not, arrives as NaN.
struct QuantisedArguments {
  const void* source;           ///< num_rows by width; of dequantise packed rows
  void* out;                    ///< packed rows; of dequantise num_rows by width
  const std::int64_t* row_ids;  ///< of quantise
  std::int64_t num_rows;
  std::int64_t width;
  std::uint64_t key;  ///< of quantise
  int bits;           ///< 8 or 4
  Storage storage;    ///< of the rows that are not packed: float32 or bfloat16
  int num_threads;    ///< 0 = OpenMP default
  Isa isa;
};

/// Bytes of a packed row.
constexpr std::int64_t quantised_bytes(std::int64_t width, int bits) {
  return width == 0 ? 0 : 4 + (bits == 8 ? width : (width + 1) / 2);
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
