/// Dot products of some rows with several others each (a sampled dense-dense product).
#pragma once

#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

/// out[e, k] = queries[e] . x[rows[e, k]]
struct RowDots {
  const void* queries;       ///< num_queries by width, float32 or float64
  const void* x;             ///< like the queries
  const std::int32_t* rows;  ///< num_queries by count
  void* out;                 ///< like `rows`, of the type of x
  std::int64_t num_queries;
  std::int64_t count;
  std::int64_t width;
  Storage storage;
  int num_threads;  ///< 0 = OpenMP default
  Isa isa;
};

/// @pre every number in `rows` is a row of x.
void row_dots(const RowDots& arguments);

/// Kernels by storage type, for queries [first, last); null where the type is not offered.
struct RowDotsTable {
  void (*dots[kNumStorages])(const RowDots&, std::int64_t first, std::int64_t last);
};

}  // namespace hpcgnn::kernels
