/// Rows rounded to 8-bit integers for products, and their sums of 32 bits scaled back.
#pragma once

#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

/// x is about out, in -127 ... 127, times the scale of its row or column; the scale is NaN if one
/// of its numbers is not finite.
struct Integers {
  const void* x;  ///< num_rows by width, float32 or 16-bit floats
  std::int8_t* out;
  float* scales;  ///< one for each row, or for each column
  std::int64_t num_rows;
  std::int64_t width;
  Storage storage;
  int num_threads;  ///< 0 = OpenMP default
  Isa isa;
};

/// out[i, c] = [out[i, c] +] sums[i, c] row_scales[i] column_scales[c] [+ bias[c]]
struct IntegerSums {
  const std::int32_t* sums;  ///< num_rows by width
  const float* row_scales;
  const float* column_scales;
  const float* bias;  ///< null = none
  void* out;          ///< like the sums, float32 or 16-bit floats
  bool accumulate;
  std::int64_t num_rows;
  std::int64_t width;
  Storage storage;
  int num_threads;  ///< 0 = OpenMP default
  Isa isa;
};

void integer_rows(const Integers& arguments);
void integer_columns(const Integers& arguments);
void scale_sums(const IntegerSums& arguments);

/// Kernels by storage type, for rows or columns [first, last); null where the type is not offered.
struct IntegersTable {
  void (*rows[kNumStorages])(const Integers&, std::int64_t first, std::int64_t last);
  void (*columns[kNumStorages])(const Integers&, std::int64_t first, std::int64_t last);
  void (*sums[kNumStorages])(const IntegerSums&, std::int64_t first, std::int64_t last);
};

}  // namespace hpcgnn::kernels
