#include "bindings.h"

#include "dense/products.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

void require_dtype_of(const char* name, const auto& array, const auto& rows) {
  if (array.dtype() != rows.dtype())
    throw nb::type_error(
        (std::string(name) + " must be " + dtype_text(rows.dtype()) + ", as the rows are").c_str());
}

/// `matrix` may have any strides, such as those of a transposed one.
void py_product(const AnyMatrix& rows, const AnyPitched& matrix, OutMatrix& out, bool accumulate,
                const std::string& half, int threads, const std::string& isa) {
  const Storage storage = storage_of(rows.dtype(), half);
  const std::int64_t num_rows = extent(rows, 0), inner = extent(rows, 1);
  const std::int64_t columns = extent(matrix, 1);
  require_sums_of("matrix", matrix, storage);
  require_dtype_of("out", out, rows);
  require(extent(matrix, 0) == inner, "matrix must have a row for each column of rows");
  require(extent(out, 0) == num_rows, "out must have as many rows as rows");
  require(extent(out, 1) == columns, "out must have as many columns as matrix");
  const Isa chosen = parse_isa(isa);
  nb::gil_scoped_release unlocked;
  const MatrixView view{matrix.data(), inner, columns, matrix.stride(0), matrix.stride(1)};
  const Buffer panels = pack(view, accumulator_of(storage), chosen);
  const void* const from = accumulate ? out.data() : nullptr;
  const MultiplyArguments a{rows.data(), panels.get(), from, out.data(), num_rows, inner, columns};
  if (storage_bytes(storage) == 2)
    multiply_half(a, storage, threads, chosen);
  else
    multiply(a, storage, threads, chosen);
}

void py_contraction(const AnyMatrix& left, const AnyMatrix& right, OutMatrix& total,
                    const std::string& half, int threads, const std::string& isa) {
  const Storage storage = storage_of(left.dtype(), half);
  const std::int64_t width = extent(left, 1), columns = extent(right, 1);
  require_dtype_of("right", right, left);
  require_sums_of("total", total, storage);
  require(extent(left, 0) == extent(right, 0), "right must have as many rows as left");
  require(extent(total, 0) == width, "total must have a row for each column of left");
  require(extent(total, 1) == columns, "total must have as many columns as right");
  const Isa chosen = parse_isa(isa);
  nb::gil_scoped_release unlocked;
  contract_tall({left.data(), right.data(), total.data(), extent(left, 0), width, columns, columns},
                storage, threads, chosen);
}

}  // namespace

void bind_dense(nb::module_& m) {
  define(m, "dense_product", &py_product,
         {"rows", "matrix", "out", "accumulate", "half", "threads", "isa"});
  define(m, "dense_contraction", &py_contraction,
         {"left", "right", "total", "half", "threads", "isa"});
}

}  // namespace hpcgnn::kernels
