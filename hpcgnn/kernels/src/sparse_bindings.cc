#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <tuple>

#include "bindings.h"
#include "isa.h"
#include "pattern.h"
#include "spmm.h"
#include "spmm_transpose.h"
#include "transpose.h"

namespace hpcgnn::kernels {
namespace {

using namespace nb::literals;
using OptionalValues = std::optional<AnyVector>;

/// The checks that cost nothing: the products check the order of the offsets as they go.
std::int64_t checked_rows(const Offsets& indptr, const Indices& indices) {
  require(extent(indptr, 0) > 0, "indptr must not be empty");
  const std::int64_t num_rows = extent(indptr, 0) - 1;
  require(indptr.data()[0] == 0, "indptr must start at 0");
  require(indptr.data()[num_rows] == extent(indices, 0),
          "indptr must end at the number of indices");
  return num_rows;
}

const void* checked_values(const OptionalValues& values, Storage x, std::int64_t nonzeros) {
  if (!values) return nullptr;
  if (storage_of(values->dtype(), "") != accumulator_of(x))
    throw nb::type_error("values must be float64 when x is, else float32");
  require(extent(*values, 0) == nonzeros, "values and indices must have the same length");
  return values->data();
}

const std::int32_t* checked_subset(const std::optional<Indices>& rows, std::int64_t num_rows,
                                   std::int64_t limit) {
  if (!rows) return nullptr;
  require(extent(*rows, 0) == num_rows, "rows must have one entry for each row of indptr");
  check_range("rows", rows->data(), num_rows, limit);
  return rows->data();
}

void py_spmm(const Offsets& indptr, const Indices& indices, const OptionalValues& values,
             const AnyMatrix& x, OutMatrix& out, const std::optional<Indices>& rows,
             bool accumulate, bool mean, int threads, const std::string& half,
             const std::string& isa) {
  const std::int64_t num_rows = checked_rows(indptr, indices), nonzeros = extent(indices, 0);
  const Storage x_storage = storage_of(x.dtype(), half);
  const SpmmArguments arguments{.indptr = indptr.data(),
                                .indices = indices.data(),
                                .values = checked_values(values, x_storage, nonzeros),
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
    throw nb::type_error("out must have the dtype of x, or float32 beside a 16-bit type");
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
  if (storage_of(out.dtype(), half) != accumulator_of(x_storage))
    throw nb::type_error("out must be float64 when x is, else float32");
  require(extent(out, 1) == arguments.width, "x and out must have the same number of columns");
  require(rows || extent(x, 0) == num_rows, "x must have one row for each row of indptr");
  nb::gil_scoped_release unlocked;
  check_indptr(indptr.data(), num_rows, nonzeros);
  // An index out of range would be written to: worth a pass over the indices.
  check_range("indices", indices.data(), nonzeros, arguments.num_out_rows);
  spmm_transpose(arguments);
}

std::tuple<Vector<std::int64_t>, Vector<std::int32_t>, Vector<std::int64_t>> py_transpose_csr(
    const Offsets& indptr, const Indices& indices, std::int64_t num_columns, int threads) {
  require(num_columns >= 0, "num_columns must not be negative");
  const std::int64_t nonzeros = extent(indices, 0);
  const Pattern pattern{indptr.data(), indices.data(), checked_rows(indptr, indices), num_columns};
  check_indptr(pattern.indptr, pattern.num_rows, nonzeros);
  check_range("indices", pattern.indices, nonzeros, num_columns);
  auto out_indptr = new_vector<std::int64_t>(num_columns + 1);
  auto out_indices = new_vector<std::int32_t>(nonzeros);
  auto source = new_vector<std::int64_t>(nonzeros);
  {
    nb::gil_scoped_release unlocked;
    transpose_csr(pattern, out_indptr.data(), out_indices.data(), source.data(), threads);
  }
  return {out_indptr, out_indices, source};
}

template <class T>
void py_permute_values(const Vector<const T>& values, const Offsets& source, Vector<T>& out,
                       int threads) {
  require(extent(out, 0) == extent(source, 0), "source and out must have the same length");
  nb::gil_scoped_release unlocked;
  permute_values(values.data(), source.data(), extent(source, 0), sizeof(T), out.data(), threads);
}

template <class T>
void py_transpose_values_symmetric(const Offsets& indptr, const Indices& indices,
                                   const Vector<const T>& values, Vector<T>& out) {
  const std::int64_t num_rows = checked_rows(indptr, indices), nonzeros = extent(indices, 0);
  require(extent(values, 0) == nonzeros && extent(out, 0) == nonzeros,
          "values and indices must have the same length");
  nb::gil_scoped_release unlocked;
  check_indptr(indptr.data(), num_rows, nonzeros);
  check_range("indices", indices.data(), nonzeros, num_rows);
  transpose_values_symmetric({indptr.data(), indices.data(), num_rows, num_rows}, values.data(),
                             sizeof(T), out.data());
}

void py_validate_csr(const Offsets& indptr, const Indices& indices, std::int64_t num_columns,
                     bool sorted) {
  require(extent(indptr, 0) > 0, "indptr must not be empty");
  nb::gil_scoped_release unlocked;
  check_indptr(indptr.data(), extent(indptr, 0) - 1, extent(indices, 0));
  check_range("indices", indices.data(), extent(indices, 0), num_columns);
  if (sorted) check_sorted(indptr.data(), indices.data(), extent(indptr, 0) - 1);
}

template <class T>
void bind_values(nb::module_& m) {
  m.def("permute_values", &py_permute_values<T>, "values"_a.noconvert(), "source"_a.noconvert(),
        "out"_a.noconvert(), "threads"_a);
  m.def("transpose_values_symmetric", &py_transpose_values_symmetric<T>, "indptr"_a.noconvert(),
        "indices"_a.noconvert(), "values"_a.noconvert(), "out"_a.noconvert());
}

}  // namespace

void bind_sparse(nb::module_& m) {
  m.def("spmm", &py_spmm, "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "values"_a.noconvert().none(), "x"_a.noconvert(), "out"_a.noconvert(),
        "rows"_a.noconvert().none(), "accumulate"_a, "mean"_a, "threads"_a, "half"_a, "isa"_a,
        nb::sig("def spmm(indptr: NDArray[numpy.int64], indices: NDArray[numpy.int32], "
                "values: NDArray[typing.Any] | None, x: NDArray[typing.Any], "
                "out: NDArray[typing.Any], rows: NDArray[numpy.int32] | None, accumulate: bool, "
                "mean: bool, threads: int, half: str, isa: str) -> None"));
  m.def("spmm_transpose", &py_spmm_transpose, "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "values"_a.noconvert().none(), "x"_a.noconvert(), "out"_a.noconvert(),
        "rows"_a.noconvert().none(), "accumulate"_a, "mean"_a, "threads"_a, "half"_a, "isa"_a,
        nb::sig("def spmm_transpose(indptr: NDArray[numpy.int64], indices: NDArray[numpy.int32], "
                "values: NDArray[typing.Any] | None, x: NDArray[typing.Any], "
                "out: NDArray[typing.Any], rows: NDArray[numpy.int32] | None, accumulate: bool, "
                "mean: bool, threads: int, half: str, isa: str) -> None"));
  m.def("transpose_csr", &py_transpose_csr, "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "num_columns"_a, "threads"_a);
  m.def("validate_csr", &py_validate_csr, "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "num_columns"_a, "sorted"_a);
  bind_values<float>(m);
  bind_values<double>(m);
}

}  // namespace hpcgnn::kernels
