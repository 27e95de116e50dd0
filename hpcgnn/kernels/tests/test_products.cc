// Dense products of rows with small matrices, and their gradients, against plain loops.
#include <cmath>

#include "dense/products.h"
#include "testing.h"

namespace hpcgnn::kernels::testing {
namespace {

struct Shape {
  std::int64_t rows, inner, columns;
};

template <class T>
void check_sum(T found, double expected) {
  const double tolerance = sizeof(T) == 4 ? 1e-4 : 1e-12;
  check(std::abs(static_cast<double>(found) - expected) <= tolerance * (1 + std::abs(expected)),
        "a product");
}

/// total = start + left^T right.
template <class T>
void check_contraction(const std::vector<T>& total, const std::vector<T>& start,
                       const std::vector<T>& left, const std::vector<T>& right, const Shape& s) {
  for (std::int64_t k = 0; k < s.inner; ++k)
    for (std::int64_t c = 0; c < s.columns; ++c) {
      double sum = start[at(k, c, s.columns)];
      for (std::int64_t i = 0; i < s.rows; ++i)
        sum += double(left[at(i, k, s.inner)]) * double(right[at(i, c, s.columns)]);
      check_sum(total[at(k, c, s.columns)], sum);
    }
}

template <class T>
void test_products(Storage storage, const Shape& s, int threads, Isa isa) {
  const auto rows = random_dense<T>(s.rows * s.inner, 3),
             from = random_dense<T>(s.rows * s.columns, 5);
  const auto matrix = random_dense<T>(s.inner * s.columns, 7);
  std::vector<T> out(from.size());
  const Buffer panels = pack({matrix.data(), s.inner, s.columns, s.columns, 1}, storage, isa);
  multiply({rows.data(), panels.get(), from.data(), out.data(), s.rows, s.inner, s.columns},
           storage, threads, isa);
  std::vector<T> total = matrix;
  contract({rows.data(), from.data(), total.data(), s.rows, s.inner, s.columns, s.columns}, storage,
           threads, isa);
  for (std::int64_t i = 0; i < s.rows; ++i)
    for (std::int64_t c = 0; c < s.columns; ++c) {
      double sum = from[at(i, c, s.columns)];
      for (std::int64_t k = 0; k < s.inner; ++k)
        sum += double(rows[at(i, k, s.inner)]) * double(matrix[at(k, c, s.columns)]);
      check_sum(out[at(i, c, s.columns)], sum);
    }
  check_contraction(total, matrix, rows, from, s);
}

/// Pieces of rows, which threads share, are summed to the same bits.
template <class T>
void test_tall(Storage storage, const Shape& s, Isa isa) {
  const auto left = random_dense<T>(s.rows * s.inner, 3),
             right = random_dense<T>(s.rows * s.columns, 5);
  const auto start = random_dense<T>(s.inner * s.columns, 7);
  std::vector<T> alone = start, together = start;
  contract_tall({left.data(), right.data(), alone.data(), s.rows, s.inner, s.columns, s.columns},
                storage, 1, isa);
  contract_tall({left.data(), right.data(), together.data(), s.rows, s.inner, s.columns, s.columns},
                storage, 3, isa);
  check(alone == together, "bits of a contraction on threads");
  check_contraction(alone, start, left, right, s);
}

void test_all(Isa isa) {
  for (const Shape& shape : {Shape{1, 1, 1},
                             {17, 5, 33},
                             {300, 16, 32},
                             {13, 700, 3},
                             {29, 64, 100},
                             {0, 3, 4},
                             {5, 0, 4}})
    for (const int threads : {1, 3}) {
      test_products<float>(Storage::kFloat32, shape, threads, isa);
      test_products<double>(Storage::kFloat64, shape, threads, isa);
    }
  const Shape large{600, 40, 50};
  test_products<float>(Storage::kFloat32, large, 3, isa);
  for (const Shape& shape : {Shape{16'500, 2, 17}, {9'000, 3, 16}, {7, 3, 2}}) {
    test_tall<float>(Storage::kFloat32, shape, isa);
    test_tall<double>(Storage::kFloat64, shape, isa);
  }
}

}  // namespace
}  // namespace hpcgnn::kernels::testing

int test_products(int, char*[]) {
  using namespace hpcgnn::kernels;
  for (const std::string& name : available_isas()) testing::test_all(parse_isa(name));
  return 0;
}
