#include "bindings.h"

#include <optional>

#include "exact/exact.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

using Doubles = Vector<const double>;
using OutDoubles = Vector<double>;
using Sums = Matrix<std::int64_t>;

ExactRows exact_rows(const AnyMatrix& x, const std::optional<Doubles>& factors, int threads,
                     const std::string& isa) {
  require(!factors || extent(*factors, 0) == extent(x, 0), "factors must have one for each row");
  return {.data = x.data(),
          .factors = factors ? factors->data() : nullptr,
          .num_rows = extent(x, 0),
          .width = extent(x, 1),
          .storage = wide_storage_of("rows", x.dtype()),
          .num_threads = threads,
          .isa = parse_isa(isa)};
}

const double* by_column(const Doubles& numbers, const AnyMatrix& x) {
  require(extent(numbers, 0) == extent(x, 1), "scales must have a number a column");
  return numbers.data();
}

void py_column_largest(const AnyMatrix& x, const std::optional<Doubles>& factors,
                       OutDoubles& largest, int threads, const std::string& isa) {
  const ExactRows rows = exact_rows(x, factors, threads, isa);
  require(extent(largest, 0) == rows.width, "largest must have a number a column");
  nb::gil_scoped_release unlocked;
  column_largest(rows, largest.data());
}

void py_exact_total(const AnyMatrix& x, const Doubles& scale, Sums& sums, int threads,
                    const std::string& isa) {
  const ExactTotal arguments{.rows = exact_rows(x, std::nullopt, threads, isa),
                             .scale = by_column(scale, x),
                             .sums = sums.data()};
  require(extent(sums, 0) == 2 && extent(sums, 1) == arguments.rows.width,
          "sums must be two limbs a column");
  nb::gil_scoped_release unlocked;
  exact_total(arguments);
}

void py_exact_contract(const AnyMatrix& left, const AnyMatrix& right, const Doubles& left_scale,
                       const Doubles& right_scale, int digits, Sums& sums, int threads,
                       const std::string& isa) {
  const ExactContract arguments{.left = exact_rows(left, std::nullopt, threads, isa),
                                .right = exact_rows(right, std::nullopt, threads, isa),
                                .left_scale = by_column(left_scale, left),
                                .right_scale = by_column(right_scale, right),
                                .digits = digits,
                                .sums = sums.data()};
  require(left.dtype() == right.dtype() && extent(left, 0) == extent(right, 0),
          "left and right must have one dtype and as many rows");
  require(digits >= 1 && digits <= 3, "digits must be 1, 2 or 3");
  require(digits > 1 || arguments.left.storage == Storage::kFloat32, "one digit is for float32");
  require(extent(sums, 0) == 2 * digits && extent(sums, 1) == extent(left, 1) * extent(right, 1),
          "sums must be two limbs a digit of each product");
  nb::gil_scoped_release unlocked;
  exact_contract(arguments);
}

void py_exact_digits(const AnyMatrix& x, const std::optional<Doubles>& factors,
                     const Doubles& scale, int bits, int digits, Matrix<std::int32_t>& out,
                     int threads, const std::string& isa) {
  const ExactDigits arguments{.rows = exact_rows(x, factors, threads, isa),
                              .scale = by_column(scale, x),
                              .out = out.data(),
                              .bits = bits,
                              .digits = digits};
  require(bits >= 1 && bits <= 30 && digits >= 1, "bits must be 1 to 30, and digits positive");
  require(extent(out, 0) == extent(x, 0) && extent(out, 1) == digits * extent(x, 1),
          "out must have a column for each digit of each column");
  nb::gil_scoped_release unlocked;
  exact_digits(arguments);
}

void py_exact_join(const Matrix<const double>& sums, const std::optional<Doubles>& factors,
                   const Doubles& units, int bits, int digits, OutMatrix& out, int threads,
                   const std::string& isa) {
  const AnyMatrix result(out);
  const ExactJoin arguments{.rows = exact_rows(result, factors, threads, isa),
                            .sums = sums.data(),
                            .units = by_column(units, result),
                            .out = out.data(),
                            .bits = bits,
                            .digits = digits};
  require(bits >= 1 && bits <= 30 && digits >= 1, "bits must be 1 to 30, and digits positive");
  require(extent(sums, 0) == extent(out, 0) && extent(sums, 1) == digits * extent(out, 1),
          "sums must have a column for each digit of each column of out");
  nb::gil_scoped_release unlocked;
  exact_join(arguments);
}

void py_ordered_product(const AnyMatrix& x, const AnyMatrix& matrix, OutMatrix& out,
                        bool accumulate, int threads, const std::string& isa) {
  const OrderedProduct arguments{.rows = exact_rows(x, std::nullopt, threads, isa),
                                 .matrix = matrix.data(),
                                 .out = out.data(),
                                 .width = extent(matrix, 1),
                                 .accumulate = accumulate};
  require(matrix.dtype() == x.dtype() && out.dtype() == x.dtype(),
          "rows, matrix and out must have one dtype");
  require(extent(matrix, 0) == extent(x, 1), "matrix must have a row for each column of x");
  require(extent(out, 0) == extent(x, 0) && extent(out, 1) == extent(matrix, 1),
          "out must have the rows of x and the columns of matrix");
  nb::gil_scoped_release unlocked;
  ordered_product(arguments);
}

}  // namespace

void bind_exact(nb::module_& m) {
  define(m, &py_column_largest,
         "def column_largest(x: NDArray[typing.Any], factors: NDArray[numpy.float64] | None, "
         "largest: NDArray[numpy.float64], threads: int, isa: str) -> None");
  define(m, &py_exact_total,
         "def exact_total(x: NDArray[typing.Any], scale: NDArray[numpy.float64], "
         "sums: NDArray[numpy.int64], threads: int, isa: str) -> None");
  define(m, &py_exact_contract,
         "def exact_contract(left: NDArray[typing.Any], right: NDArray[typing.Any], "
         "left_scale: NDArray[numpy.float64], right_scale: NDArray[numpy.float64], digits: int, "
         "sums: NDArray[numpy.int64], threads: int, isa: str) -> None");
  define(m, &py_exact_digits,
         "def exact_digits(x: NDArray[typing.Any], factors: NDArray[numpy.float64] | None, "
         "scale: NDArray[numpy.float64], bits: int, digits: int, out: NDArray[numpy.int32], "
         "threads: int, isa: str) -> None");
  define(m, &py_exact_join,
         "def exact_join(sums: NDArray[numpy.float64], factors: NDArray[numpy.float64] | None, "
         "units: NDArray[numpy.float64], bits: int, digits: int, out: NDArray[typing.Any], "
         "threads: int, isa: str) -> None");
  define(m, &py_ordered_product,
         "def ordered_product(x: NDArray[typing.Any], matrix: NDArray[typing.Any], "
         "out: NDArray[typing.Any], accumulate: bool, threads: int, isa: str) -> None");
}

}  // namespace hpcgnn::kernels
