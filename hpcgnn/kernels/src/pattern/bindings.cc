#include "bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <limits>
#include <optional>
#include <tuple>

#include "pattern/numbers.h"
#include "pattern/pattern.h"

namespace hpcgnn::kernels {
namespace {

using Flags = Vector<const bool>;
using Sources = std::optional<Vector<std::int64_t>>;

template <class T>
using Values = std::optional<Vector<T>>;
template <class T>
using Matrix3 = std::tuple<Vector<std::int64_t>, Vector<std::int32_t>, Values<T>>;

template <class T>
const T* checked_values(const Values<const T>& values, std::int64_t nonzeros) {
  if (!values) return nullptr;
  require(extent(*values, 0) == nonzeros, "values and indices must have the same length");
  return values->data();
}

template <class T>
std::tuple<Vector<std::int64_t>, Vector<std::int32_t>, Values<T>, Sources> py_transpose_csr(
    const Offsets& indptr, const Indices& indices, const Values<const T>& values,
    std::int64_t num_columns, bool with_source, int threads) {
  require(num_columns >= 0, "num_columns must not be negative");
  require(num_columns <= std::numeric_limits<std::int32_t>::max(),
          "num_columns must be below 2^31: columns are numbered in int32");
  const std::int64_t nonzeros = extent(indices, 0);
  const Pattern pattern{indptr.data(), indices.data(), checked_rows(indptr, indices), num_columns};
  const T* const from = checked_values(values, nonzeros);
  check_indptr(pattern.indptr, pattern.num_rows, nonzeros);
  check_range("indices", pattern.indices, nonzeros, num_columns);
  auto out_indptr = new_vector<std::int64_t>(num_columns + 1);
  auto out_indices = new_vector<std::int32_t>(nonzeros);
  Values<T> out_values;
  if (values) out_values = new_vector<T>(nonzeros);
  Sources source;
  if (with_source) source = new_vector<std::int64_t>(nonzeros);
  const Transposed out{out_indptr.data(), out_indices.data(),
                       out_values ? out_values->data() : nullptr,
                       source ? source->data() : nullptr};
  {
    nb::gil_scoped_release unlocked;
    transpose_csr(pattern, from, sizeof(T), out, threads);
  }
  return {out_indptr, out_indices, out_values, source};
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

/// Returns the offsets of the kept entries of each row, their columns and their values.
template <class T>
Matrix3<T> py_select_csr(const Offsets& indptr, const Indices& indices,
                         const Values<const T>& values, const Indices& columns,
                         const std::optional<Flags>& rows, const std::optional<Flags>& entries) {
  const std::int64_t num_rows = checked_rows(indptr, indices), nonzeros = extent(indices, 0);
  const T* const from = checked_values(values, nonzeros);
  require(!rows || extent(*rows, 0) == num_rows, "rows must have one flag for each row");
  require(!entries || extent(*entries, 0) == nonzeros, "entries must have one flag for each entry");
  check_indptr(indptr.data(), num_rows, nonzeros);
  check_range("indices", indices.data(), nonzeros, extent(columns, 0));
  const Selection selection{indptr.data(),
                            indices.data(),
                            num_rows,
                            columns.data(),
                            rows ? rows->data() : nullptr,
                            entries ? entries->data() : nullptr};
  auto counts = new_vector<std::int64_t>(num_rows);
  {
    nb::gil_scoped_release unlocked;
    count_selected(selection, counts.data());
  }
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < num_rows; ++i) total += counts.data()[i];
  auto out_indices = new_vector<std::int32_t>(total);
  Values<T> out_values;
  if (values) out_values = new_vector<T>(total);
  const Selected out{out_indices.data(), out_values ? out_values->data() : nullptr};
  {
    nb::gil_scoped_release unlocked;
    copy_selected(selection, from, sizeof(T), out);
  }
  return {counts, out_indices, out_values};
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
Vector<T> py_distinct(const Vector<const T>& values, std::int64_t limit) {
  require(limit >= 0, "limit must not be negative");
  NumberSet numbers(limit);
  {
    nb::gil_scoped_release unlocked;
    numbers.insert(values.data(), extent(values, 0));
    numbers.close();
  }
  auto out = new_vector<T>(numbers.size());
  nb::gil_scoped_release unlocked;
  numbers.list(out.data());
  return out;
}

/// `out` may be the memory of `values`: each element is read before it is written.
template <class T>
void py_renumber(const Vector<const T>& names, const Indices& numbers,
                 const Vector<const T>& values, Vector<std::int32_t>& out) {
  const std::int64_t count = extent(names, 0), size = extent(values, 0);
  require(extent(numbers, 0) == count, "numbers must have one element for each name");
  require(extent(out, 0) == size, "out must have one element for each value");
  nb::gil_scoped_release unlocked;
  NumberSet known(count > 0 ? static_cast<std::int64_t>(names.data()[count - 1]) + 1 : 0);
  known.insert(names.data(), count);
  known.close();
  require(known.size() == count, "names must be distinct");
  for (std::int64_t i = 0; i < size; ++i)
    out.data()[i] = numbers.data()[known.position(static_cast<std::int64_t>(values.data()[i]))];
}

}  // namespace

void bind_pattern(nb::module_& m) {
  define(m, &py_validate_csr,
         "def validate_csr(indptr: NDArray[numpy.int64], indices: NDArray[numpy.int32], "
         "num_columns: int, sorted: bool) -> None");
  define(m, &py_distinct<std::int32_t>,
         "def distinct32(values: NDArray[numpy.int32], limit: int) -> NDArray[numpy.int32]");
  define(m, &py_distinct<std::int64_t>,
         "def distinct64(values: NDArray[numpy.int64], limit: int) -> NDArray[numpy.int64]");
  define(m, &py_renumber<std::int32_t>,
         "def renumber32(names: NDArray[numpy.int32], numbers: NDArray[numpy.int32], "
         "values: NDArray[numpy.int32], out: NDArray[numpy.int32]) -> None");
  define(m, &py_renumber<std::int64_t>,
         "def renumber64(names: NDArray[numpy.int64], numbers: NDArray[numpy.int32], "
         "values: NDArray[numpy.int64], out: NDArray[numpy.int32]) -> None");
  define_by_dtype(
      m, &py_transpose_csr<float>, &py_transpose_csr<double>, 2,
      "def transpose_csr(indptr: NDArray[numpy.int64], indices: NDArray[numpy.int32], "
      "values: NDArray[typing.Any] | None, num_columns: int, with_source: bool, threads: int) "
      "-> tuple[NDArray[numpy.int64], NDArray[numpy.int32], NDArray[typing.Any] | None, "
      "NDArray[numpy.int64] | None]");
  define_by_dtype(
      m, &py_transpose_values_symmetric<float>, &py_transpose_values_symmetric<double>, 2,
      "def transpose_values_symmetric(indptr: NDArray[numpy.int64], "
      "indices: NDArray[numpy.int32], values: NDArray[typing.Any], out: NDArray[typing.Any]) "
      "-> None");
  define_by_dtype(
      m, &py_select_csr<float>, &py_select_csr<double>, 2,
      "def select_csr(indptr: NDArray[numpy.int64], indices: NDArray[numpy.int32], "
      "values: NDArray[typing.Any] | None, columns: NDArray[numpy.int32], "
      "rows: NDArray[numpy.bool_] | None, entries: NDArray[numpy.bool_] | None) "
      "-> tuple[NDArray[numpy.int64], NDArray[numpy.int32], NDArray[typing.Any] | None]");
}

}  // namespace hpcgnn::kernels
