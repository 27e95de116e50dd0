#include "bindings.h"

#include "dense/products.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

/// Require that an array has the dtype of the rows, or that both are of 16 bits or float32.
void require_dtype_beside(const char* name, Storage array, Storage rows) {
  const bool fits = array == rows || (accumulator_of(rows) == Storage::kFloat32 &&
                                      accumulator_of(array) == Storage::kFloat32);
  if (!fits)
    throw nb::type_error(
        (std::string(name) + " must be float64 where rows are, and only there").c_str());
}

/// `matrix` may have any strides, such as those of a transposed one.
void py_product(const AnyMatrix& rows, const AnyPitched& matrix, OutMatrix& out,
                const std::optional<AnyVector>& bias, bool accumulate, const std::string& half,
                int threads, const std::string& isa) {
  const Storage storage = storage_of(rows.dtype(), half), written = storage_of(out.dtype(), half);
  const std::int64_t num_rows = extent(rows, 0), inner = extent(rows, 1);
  const std::int64_t columns = extent(matrix, 1);
  require_sums_of("matrix", matrix, storage);
  require_dtype_beside("out", written, storage);
  require(extent(matrix, 0) == inner, "matrix must have a row for each column of rows");
  require(extent(out, 0) == num_rows, "out must have as many rows as rows");
  require(extent(out, 1) == columns, "out must have as many columns as matrix");
  require(!(bias && accumulate), "a bias is not added to a sum");
  if (bias) {
    require_sums_of("bias", *bias, storage);
    require(extent(*bias, 0) == columns, "bias must have an entry for each column of matrix");
  }
  const Isa chosen = parse_isa(isa);
  nb::gil_scoped_release unlocked;
  const MatrixView view{matrix.data(), inner, columns, matrix.stride(0), matrix.stride(1)};
  const Buffer panels = pack(view, accumulator_of(storage), chosen);
  const void* const from = bias ? bias->data() : accumulate ? out.data() : nullptr;
  const MultiplyArguments a{.rows = rows.data(),
                            .panels = panels.get(),
                            .from = from,
                            .out = out.data(),
                            .num_rows = num_rows,
                            .inner = inner,
                            .columns = columns,
                            .repeats = bias.has_value()};
  if (storage_bytes(storage) == 2 || storage_bytes(written) == 2)
    multiply_widened(a, storage, written, threads, chosen);
  else
    multiply(a, storage, threads, chosen);
}

void py_contraction(const AnyMatrix& left, const AnyMatrix& right, OutMatrix& total,
                    const std::string& half, int threads, const std::string& isa) {
  const Storage storage = storage_of(left.dtype(), half), other = storage_of(right.dtype(), half);
  const std::int64_t width = extent(left, 1), columns = extent(right, 1);
  require_dtype_beside("right", other, storage);
  require_sums_of("total", total, storage);
  require(extent(left, 0) == extent(right, 0), "right must have as many rows as left");
  require(extent(total, 0) == width, "total must have a row for each column of left");
  require(extent(total, 1) == columns, "total must have as many columns as right");
  const Isa chosen = parse_isa(isa);
  nb::gil_scoped_release unlocked;
  contract_tall({left.data(), right.data(), total.data(), extent(left, 0), width, columns, columns},
                storage, other, threads, chosen);
}

}  // namespace

void bind_dense(nb::module_& m) {
  define(m, "dense_product", &py_product,
         {"rows", "matrix", "out", "bias", "accumulate", "half", "threads", "isa"});
  define(m, "dense_contraction", &py_contraction,
         {"left", "right", "total", "half", "threads", "isa"});
}

}  // namespace hpcgnn::kernels
