// Bindings of hpcgnn.kernels._kernels. Defaults, dtype errors and documentation live in the Python
// face; shapes, offsets and row numbers are checked here, before the GIL is released.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "cover_bindings.h"
#include "dropout.h"
#include "isa.h"
#include "pattern.h"
#include "rows.h"
#include "spmm.h"
#include "transpose.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hpcgnn::kernels {
namespace {

template <class T>
using Vector = nb::ndarray<T, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<T, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using AnyVector = nb::ndarray<nb::ro, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using AnyMatrix = nb::ndarray<nb::ro, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutMatrix = nb::ndarray<nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Offsets = Vector<const std::int64_t>;
using Indices = Vector<const std::int32_t>;

std::int64_t extent(const auto& array, int axis) {
  return static_cast<std::int64_t>(array.shape(static_cast<std::size_t>(axis)));
}

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

/// `half` names what uint16 elements are.
Storage storage_of(nb::dlpack::dtype dtype, const std::string& half) {
  if (dtype == nb::dtype<float>()) return Storage::kFloat32;
  if (dtype == nb::dtype<double>()) return Storage::kFloat64;
  if (dtype == nb::dtype<std::uint16_t>() && half == "bfloat16") return Storage::kBFloat16;
  if (dtype == nb::dtype<std::uint16_t>() && half == "float16") return Storage::kFloat16;
  throw nb::type_error("a dense operand must be float32, float64, or uint16 with half named");
}

bool holds(const AnyVector& values, Storage storage) {
  return values.dtype() ==
         (storage == Storage::kFloat64 ? nb::dtype<double>() : nb::dtype<float>());
}

template <class T>
Vector<T> new_vector(std::int64_t size) {
  T* const data = new T[static_cast<std::size_t>(size)];
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return Vector<T>(data, {static_cast<std::size_t>(size)}, owner);
}

void py_spmm(const Offsets& indptr, const Indices& indices, const std::optional<AnyVector>& values,
             const AnyMatrix& x, OutMatrix& out, const std::optional<Indices>& rows,
             bool accumulate, bool mean, int threads, const std::string& half,
             const std::string& isa) {
  require(extent(indptr, 0) > 0, "indptr must not be empty");
  const std::int64_t num_rows = extent(indptr, 0) - 1, nonzeros = extent(indices, 0);
  const SpmmArguments arguments{indptr.data(),
                                indices.data(),
                                values ? values->data() : nullptr,
                                x.data(),
                                out.data(),
                                rows ? rows->data() : nullptr,
                                num_rows,
                                nonzeros,
                                extent(x, 0),
                                extent(x, 1),
                                storage_of(x.dtype(), half),
                                storage_of(out.dtype(), half),
                                accumulate,
                                mean,
                                threads,
                                parse_isa(isa)};
  if (!spmm_supports(arguments.x_storage, arguments.out_storage))
    throw nb::type_error("out must have the dtype of x, or float32 beside a 16-bit type");
  require(extent(out, 1) == arguments.width, "x and out must have the same number of columns");
  if (values) {
    if (!holds(*values, arguments.x_storage))
      throw nb::type_error("values must be float64 when x is, else float32");
    require(extent(*values, 0) == nonzeros, "values and indices must have the same length");
  }
  if (rows) {
    require(extent(*rows, 0) == num_rows, "rows must have one entry for each row of indptr");
    check_range("rows", rows->data(), num_rows, extent(out, 0));
  } else {
    require(extent(out, 0) == num_rows, "out must have one row for each row of indptr");
  }
  require(nonzeros == 0 || arguments.num_x_rows > 0, "x must have rows when there are non-zeros");
  require(indptr.data()[0] == 0, "indptr must start at 0");
  require(indptr.data()[num_rows] == nonzeros, "indptr must end at the number of indices");
  nb::gil_scoped_release unlocked;
  spmm(arguments);
}

void py_convert_rows(const AnyMatrix& source, const std::optional<Indices>& rows, OutMatrix& out,
                     int threads, const std::string& half, const std::string& isa) {
  const std::int64_t num_rows = extent(out, 0);
  require(extent(source, 1) == extent(out, 1), "x and out must have the same number of columns");
  require((rows ? extent(*rows, 0) : extent(source, 0)) == num_rows,
          "out must have one row for each gathered row");
  if (rows) check_range("rows", rows->data(), num_rows, extent(source, 0));
  const std::int64_t width = extent(source, 1);
  if (rows && source.dtype() == out.dtype()) {
    nb::gil_scoped_release unlocked;
    gather_rows(source.data(), rows->data(), num_rows,
                width * static_cast<std::int64_t>(source.itemsize()), out.data(), threads);
    return;
  }
  const RowsArguments arguments{source.data(),
                                rows ? rows->data() : nullptr,
                                out.data(),
                                num_rows,
                                num_rows,
                                width,
                                storage_of(source.dtype(), half),
                                storage_of(out.dtype(), half),
                                threads,
                                parse_isa(isa)};
  if (!rows_supports(arguments.source_storage, arguments.out_storage))
    throw nb::type_error("out must have the dtype of x, or float32 beside a 16-bit type");
  nb::gil_scoped_release unlocked;
  convert_rows(arguments);
}

void py_scatter_add_rows(const AnyMatrix& source, const Indices& rows, OutMatrix& out, int threads,
                         const std::string& half, const std::string& isa) {
  const RowsArguments arguments{source.data(),
                                rows.data(),
                                out.data(),
                                extent(rows, 0),
                                extent(out, 0),
                                extent(source, 1),
                                storage_of(source.dtype(), half),
                                storage_of(out.dtype(), half),
                                threads,
                                parse_isa(isa)};
  if (!rows_supports(arguments.source_storage, arguments.out_storage))
    throw nb::type_error("out must have the dtype of src, or float32 beside a 16-bit type");
  require(extent(source, 0) == arguments.num_rows, "src must have one row for each entry of rows");
  require(extent(out, 1) == arguments.width, "src and out must have the same number of columns");
  check_range("rows", rows.data(), arguments.num_rows, arguments.num_out_rows);
  nb::gil_scoped_release unlocked;
  scatter_add_rows(arguments);
}

std::tuple<Vector<std::int64_t>, Vector<std::int32_t>, Vector<std::int64_t>> py_transpose_csr(
    const Offsets& indptr, const Indices& indices, std::int64_t num_columns, int threads) {
  require(extent(indptr, 0) > 0, "indptr must not be empty");
  require(num_columns >= 0, "num_columns must not be negative");
  const Pattern pattern{indptr.data(), indices.data(), extent(indptr, 0) - 1, num_columns};
  const std::int64_t nonzeros = extent(indices, 0);
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
void py_dropout_rows(const Matrix<const T>& x, const Offsets& row_ids, std::uint64_t key, double p,
                     Matrix<T>& out, int threads) {
  require(extent(row_ids, 0) == extent(x, 0), "row_ids must have one entry for each row of x");
  require(extent(out, 0) == extent(x, 0) && extent(out, 1) == extent(x, 1),
          "x and out must have the same shape");
  require(p >= 0.0 && p <= 1.0, "p must be in [0, 1]");
  nb::gil_scoped_release unlocked;
  dropout_rows(x.data(), row_ids.data(), extent(x, 0), extent(x, 1), key, p, out.data(), threads);
}

void py_validate_csr(const Offsets& indptr, const Indices& indices, std::int64_t num_columns,
                     bool sorted) {
  require(extent(indptr, 0) > 0, "indptr must not be empty");
  nb::gil_scoped_release unlocked;
  check_indptr(indptr.data(), extent(indptr, 0) - 1, extent(indices, 0));
  check_range("indices", indices.data(), extent(indices, 0), num_columns);
  if (sorted) check_sorted(indptr.data(), indices.data(), extent(indptr, 0) - 1);
}

NB_MODULE(_kernels, m) {
  m.def("available_isas", &available_isas);
  m.def("validate_csr", &py_validate_csr, "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "num_columns"_a, "sorted"_a);
  m.def("spmm", &py_spmm, "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "values"_a.noconvert().none(), "x"_a.noconvert(), "out"_a.noconvert(),
        "rows"_a.noconvert().none(), "accumulate"_a, "mean"_a, "threads"_a, "half"_a, "isa"_a);
  m.def("convert_rows", &py_convert_rows, "x"_a.noconvert(), "rows"_a.noconvert().none(),
        "out"_a.noconvert(), "threads"_a, "half"_a, "isa"_a);
  m.def("scatter_add_rows", &py_scatter_add_rows, "src"_a.noconvert(), "rows"_a.noconvert(),
        "out"_a.noconvert(), "threads"_a, "half"_a, "isa"_a);
  m.def("transpose_csr", &py_transpose_csr, "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "num_columns"_a, "threads"_a);
  m.def("dropout_rows", &py_dropout_rows<float>, "x"_a.noconvert(), "row_ids"_a.noconvert(),
        "key"_a, "p"_a, "out"_a.noconvert(), "threads"_a);
  m.def("dropout_rows", &py_dropout_rows<double>, "x"_a.noconvert(), "row_ids"_a.noconvert(),
        "key"_a, "p"_a, "out"_a.noconvert(), "threads"_a);
  bind_cover(m);
}

}  // namespace
}  // namespace hpcgnn::kernels
