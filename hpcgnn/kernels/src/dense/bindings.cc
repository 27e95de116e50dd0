#include "bindings.h"

#include "dense/products.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

/// A matrix of any strides, such as a transposed one.
template <class T>
using Strided = nb::ndarray<const T, nb::numpy, nb::ndim<2>, nb::device::cpu>;

template <class T>
constexpr Storage kStorage = sizeof(T) == 8 ? Storage::kFloat64 : Storage::kFloat32;

template <class T>
void py_multiply(const Matrix<const T>& rows, const Strided<T>& matrix, const Matrix<T>& out,
                 bool accumulate, int threads, const std::string& isa) {
  const std::int64_t num_rows = extent(rows, 0), inner = extent(rows, 1);
  const std::int64_t columns = extent(matrix, 1);
  require(extent(matrix, 0) == inner, "matrix must have a row for each column of rows");
  require(extent(out, 0) == num_rows, "out must have as many rows as rows");
  require(extent(out, 1) == columns, "out must have as many columns as matrix");
  const Isa chosen = parse_isa(isa);
  nb::gil_scoped_release unlocked;
  const MatrixView view{matrix.data(), inner, columns, matrix.stride(0), matrix.stride(1)};
  const Buffer panels = pack(view, kStorage<T>, chosen);
  multiply({rows.data(), panels.get(), accumulate ? out.data() : nullptr, out.data(), num_rows,
            inner, columns},
           kStorage<T>, threads, chosen);
}

template <class T>
void py_contract(const Matrix<const T>& left, const Matrix<const T>& right, const Matrix<T>& total,
                 int threads, const std::string& isa) {
  const std::int64_t width = extent(left, 1), columns = extent(right, 1);
  require(extent(left, 0) == extent(right, 0), "right must have as many rows as left");
  require(extent(total, 0) == width, "total must have a row for each column of left");
  require(extent(total, 1) == columns, "total must have as many columns as right");
  const Isa chosen = parse_isa(isa);
  nb::gil_scoped_release unlocked;
  contract_tall({left.data(), right.data(), total.data(), extent(left, 0), width, columns, columns},
                kStorage<T>, threads, chosen);
}

}  // namespace

void bind_dense(nb::module_& m) {
  define_by_dtype(m, "dense_product", &py_multiply<float>, &py_multiply<double>,
                  {"rows", "matrix", "out", "accumulate", "threads", "isa"}, 0);
  define_by_dtype(m, "dense_contraction", &py_contract<float>, &py_contract<double>,
                  {"left", "right", "total", "threads", "isa"}, 0);
}

}  // namespace hpcgnn::kernels
