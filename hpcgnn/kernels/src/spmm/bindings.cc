#include "bindings.h"

#include <optional>
#include <string>

#include "pattern/pattern.h"
#include "simd/isa.h"
#include "spmm/spmm.h"
#include "spmm/transpose.h"

namespace hpcgnn::kernels {
namespace {

using OptionalValues = std::optional<AnyVector>;

const void* checked_values(const OptionalValues& values, Storage x, std::int64_t nonzeros) {
  if (!values) return nullptr;
  require_sums_of("values", *values, x);
  require(extent(*values, 0) == nonzeros, "values and indices must have the same length");
  return values->data();
}

const void* checked_factors(const char* name, const OptionalValues& factors, Storage x,
                            std::int64_t count) {
  if (!factors) return nullptr;
  require_sums_of(name, *factors, x);
  require(extent(*factors, 0) == count,
          (std::string(name) + " must have one number for each row").c_str());
  return factors->data();
}

using OptionalIndices = std::optional<Indices>;

void py_spmm(const Offsets& indptr, const OptionalIndices& indices, const CodedColumns* coded,
             const OptionalValues& values, const OptionalValues& row_factors,
             const OptionalValues& column_factors, const AnyMatrix& x, OutMatrix& out,
             const OptionalIndices& rows, bool accumulate, bool mean, int threads,
             const std::string& half, const std::string& isa) {
  require(indices.has_value() != (coded != nullptr), "columns are indices, or they are coded");
  const std::int64_t nonzeros = coded ? coded->size() : extent(*indices, 0);
  const std::int64_t num_rows = checked_offsets(indptr, nonzeros);
  const Storage x_storage = storage_or_int32(x.dtype(), half);
  const SpmmArguments arguments{
      .indptr = indptr.data(),
      .indices = indices ? indices->data() : nullptr,
      .coded = coded,
      .values = checked_values(values, x_storage, nonzeros),
      .row_factors = checked_factors("row_factors", row_factors, x_storage, extent(out, 0)),
      .column_factors = checked_factors("column_factors", column_factors, x_storage, extent(x, 0)),
      .x = x.data(),
      .out = out.data(),
      .rows = checked_subset(rows, num_rows, extent(out, 0)),
      .num_rows = num_rows,
      .num_nonzeros = nonzeros,
      .num_x_rows = extent(x, 0),
      .width = extent(x, 1),
      .x_storage = x_storage,
      .out_storage = storage_of(out.dtype(), half),
      .accumulate = accumulate,
      .mean = mean,
      .num_threads = threads,
      .isa = parse_isa(isa)};
  if (!spmm_supports(x_storage, arguments.out_storage))
    throw nb::type_error(
        "out must have the dtype of x, float32 beside a 16-bit type, or float64 beside int32");
  require(!values || !column_factors, "values and column_factors exclude each other");
  require(extent(out, 1) == arguments.width, "x and out must have the same number of columns");
  require(rows || extent(out, 0) == num_rows, "out must have one row for each row of indptr");
  require(nonzeros == 0 || extent(x, 0) > 0, "x must have rows when there are non-zeros");
  nb::gil_scoped_release unlocked;
  spmm(arguments);
}

void py_spmm_transpose(const Offsets& indptr, const Indices& indices, const OptionalValues& values,
                       const AnyMatrix& x, OutMatrix& out, const std::optional<Indices>& rows,
                       bool accumulate, bool mean, int threads, const std::string& half,
                       const std::string& isa) {
  const std::int64_t num_rows = checked_rows(indptr, indices), nonzeros = extent(indices, 0);
  const Storage x_storage = storage_of(x.dtype(), half);
  const SpmmTransposeArguments arguments{.indptr = indptr.data(),
                                         .indices = indices.data(),
                                         .values = checked_values(values, x_storage, nonzeros),
                                         .x = x.data(),
                                         .out = out.data(),
                                         .rows = checked_subset(rows, num_rows, extent(x, 0)),
                                         .num_rows = num_rows,
                                         .num_nonzeros = nonzeros,
                                         .num_out_rows = extent(out, 0),
                                         .width = extent(x, 1),
                                         .x_storage = x_storage,
                                         .accumulate = accumulate,
                                         .mean = mean,
                                         .num_threads = threads,
                                         .isa = parse_isa(isa)};
  if (!has_sums_of(out, x_storage))
    throw nb::type_error("out must be float64 when x is, else float32");
  require(extent(out, 1) == arguments.width, "x and out must have the same number of columns");
  require(rows || extent(x, 0) == num_rows, "x must have one row for each row of indptr");
  nb::gil_scoped_release unlocked;
  check_indptr(indptr.data(), num_rows, nonzeros);
  // An index out of range would cause a stray write, so the indices are worth a check.
  check_range("indices", indices.data(), nonzeros, arguments.num_out_rows);
  spmm_transpose(arguments);
}

}  // namespace

void bind_sparse(nb::module_& m) {
  define(m, &py_spmm,
         "def spmm(indptr: NDArray[numpy.int64], indices: NDArray[numpy.int32] | None, "
         "coded: CodedColumns | None, values: NDArray[typing.Any] | None, "
         "row_factors: NDArray[typing.Any] | None, column_factors: NDArray[typing.Any] | None, "
         "x: NDArray[typing.Any], out: NDArray[typing.Any], rows: NDArray[numpy.int32] | None, "
         "accumulate: bool, mean: bool, threads: int, half: str, isa: str) -> None");
  define(m, &py_spmm_transpose,
         "def spmm_transpose(indptr: NDArray[numpy.int64], indices: NDArray[numpy.int32], "
         "values: NDArray[typing.Any] | None, x: NDArray[typing.Any], out: NDArray[typing.Any], "
         "rows: NDArray[numpy.int32] | None, accumulate: bool, mean: bool, threads: int, "
         "half: str, isa: str) -> None");
}

}  // namespace hpcgnn::kernels
