#include "bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "pattern/pattern.h"
#include "rows/rows.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

using namespace nb::literals;

RowsArguments rows_arguments(const AnyMatrix& source, const std::int32_t* rows,
                             std::int64_t num_rows, OutMatrix& out, int threads,
                             const std::string& half, const std::string& isa) {
  const RowsArguments arguments{.source = source.data(),
                                .rows = rows,
                                .out = out.data(),
                                .num_rows = num_rows,
                                .num_out_rows = extent(out, 0),
                                .width = extent(source, 1),
                                .source_storage = storage_of(source.dtype(), half),
                                .out_storage = storage_of(out.dtype(), half),
                                .num_threads = threads,
                                .isa = parse_isa(isa)};
  if (!rows_supports(arguments.source_storage, arguments.out_storage))
    throw nb::type_error("out must have the dtype of its source, or float32 beside a 16-bit type");
  require(extent(out, 1) == arguments.width, "out must have as many columns as its source");
  return arguments;
}

void py_gather_rows(const AnyMatrix& x, const std::optional<Indices>& rows, OutMatrix& out,
                    int threads, const std::string& half, const std::string& isa) {
  const RowsArguments arguments =
      rows_arguments(x, rows ? rows->data() : nullptr, extent(out, 0), out, threads, half, isa);
  require((rows ? extent(*rows, 0) : extent(x, 0)) == arguments.num_rows,
          "out must have one row for each gathered row");
  if (rows) check_range("rows", rows->data(), arguments.num_rows, extent(x, 0));
  nb::gil_scoped_release unlocked;
  if (rows && arguments.source_storage == arguments.out_storage)
    gather_rows(arguments.source, arguments.rows, arguments.num_rows,
                arguments.width * storage_bytes(arguments.source_storage), arguments.out, threads);
  else
    convert_rows(arguments);
}

void py_scatter_add_rows(const AnyMatrix& src, const Indices& rows, OutMatrix& out, int threads,
                         const std::string& half, const std::string& isa) {
  const RowsArguments arguments =
      rows_arguments(src, rows.data(), extent(rows, 0), out, threads, half, isa);
  require(extent(src, 0) == arguments.num_rows, "src must have one row for each entry of rows");
  check_range("rows", rows.data(), arguments.num_rows, arguments.num_out_rows);
  nb::gil_scoped_release unlocked;
  scatter_add_rows(arguments);
}

template <class T>
void py_dropout_rows(const Matrix<const T>& x, const Offsets& row_ids, std::uint64_t key, double p,
                     Matrix<T>& out, int threads) {
  require(extent(row_ids, 0) == extent(x, 0), "row_ids must have one entry for each row of x");
  require(extent(out, 0) == extent(x, 0) && extent(out, 1) == extent(x, 1),
          "x and out must have the same shape");
  require(p >= 0.0 && p <= 1.0, "p must be in [0, 1]");
  nb::gil_scoped_release unlocked;
  dropout_rows(x.data(), row_ids.data(), extent(x, 0), extent(x, 1), key, p, out.data(), threads);
}

template <class T>
void bind_dropout(nb::module_& m) {
  m.def("dropout_rows", &py_dropout_rows<T>, "x"_a.noconvert(), "row_ids"_a.noconvert(), "key"_a,
        "p"_a, "out"_a.noconvert(), "threads"_a);
}

}  // namespace

void bind_rows(nb::module_& m) {
  m.def("gather_rows", &py_gather_rows, "x"_a.noconvert(), "rows"_a.noconvert().none(),
        "out"_a.noconvert(), "threads"_a, "half"_a, "isa"_a,
        nb::sig("def gather_rows(x: NDArray[typing.Any], rows: NDArray[numpy.int32] | None, "
                "out: NDArray[typing.Any], threads: int, half: str, isa: str) -> None"));
  m.def("scatter_add_rows", &py_scatter_add_rows, "src"_a.noconvert(), "rows"_a.noconvert(),
        "out"_a.noconvert(), "threads"_a, "half"_a, "isa"_a,
        nb::sig("def scatter_add_rows(src: NDArray[typing.Any], rows: NDArray[numpy.int32], "
                "out: NDArray[typing.Any], threads: int, half: str, isa: str) -> None"));
  bind_dropout<float>(m);
  bind_dropout<double>(m);
}

}  // namespace hpcgnn::kernels
