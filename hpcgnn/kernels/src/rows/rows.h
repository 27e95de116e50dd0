/// Packing and unpacking of rows for exchanges.
#pragma once

#include <cstdint>

#include "rows/dots.h"
#include "rows/epilogue.h"
#include "rows/integers.h"
#include "rows/losses.h"
#include "rows/quantised.h"
#include "types.h"

namespace hpcgnn::kernels {

/// See RowsArguments.
struct RowsProblem {
  const void* source;
  const std::int32_t* rows;
  void* out;
  std::int64_t num_rows;
  std::int64_t width;
};

/// Kernels by storage type of source and of out; null where the pair is not offered.
struct RowsTable {
  using Kernel = void (*)(const RowsProblem&, std::int64_t first, std::int64_t last);
  Kernel convert[kNumStorages][kNumStorages];      ///< rows [first, last) of out
  Kernel scatter_add[kNumStorages][kNumStorages];  ///< additions to rows [first, last) of out
  EpilogueTable epilogue;
  QuantisedTable quantised;
  RowDotsTable row_dots;
  IntegersTable integers;
  SigmoidLossTable sigmoid_loss;
  SoftmaxLossTable softmax_loss;

  static const RowsTable portable, avx2, avx512;  ///< see table_of
};

/// Copy rows of any type: out row i = x row rows[i]; each row is `row_bytes` long.
/// @pre every rows[i] is a row of x, and out does not overlap x.
void gather_rows(const void* x, const std::int32_t* rows, std::int64_t num_rows,
                 std::int64_t row_bytes, void* out, int num_threads);

/// Copy the first `copied_bytes` of each row of x, which are `pitch_bytes` apart, without gaps.
void copy_columns(const void* x, std::int64_t num_rows, std::int64_t pitch_bytes,
                  std::int64_t copied_bytes, void* out, int num_threads);

/// The same for rows of floats, each times its own factor.
/// @pre `storage` is float32 or float64, and also the type of the factors.
void scale_columns(const void* x, const void* factors, Storage storage, std::int64_t num_rows,
                   std::int64_t pitch_bytes, std::int64_t copied_bytes, void* out, int num_threads);

/// Write the transpose of x (num_rows, width), whose elements have 2, 4 or 8 bytes.
/// @pre out does not overlap x.
void transpose_rows(const void* x, std::int64_t num_rows, std::int64_t width,
                    std::int64_t element_bytes, void* out, int num_threads);

/// Operands of a converting gather or an adding scatter.
struct RowsArguments {
  const void* source;
  const std::int32_t* rows;  ///< null = identity (gather only)
  void* out;
  std::int64_t num_rows;  ///< length of `rows`
  std::int64_t num_out_rows;
  std::int64_t width;  ///< elements a row, of source and of out
  Storage source_storage;
  Storage out_storage;
  int num_threads;  ///< 0 = OpenMP default
  Isa isa;
};

/// True when rows of `source` can be converted to or added into `out`: the pairs of spmm_supports.
bool rows_supports(Storage source, Storage out);

/// out row i = source row rows[i], rounded or widened to the storage type of out.
void convert_rows(const RowsArguments& arguments);

/// out row rows[i] += source row i, for i in ascending order within each row of out: the result
/// does not depend on the number of threads. The sum is rounded at each addition.
void scatter_add_rows(const RowsArguments& arguments);

}  // namespace hpcgnn::kernels
