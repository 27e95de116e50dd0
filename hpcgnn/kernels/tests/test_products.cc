// Dense products of rows with small matrices, and their gradients, against plain loops.
#include <cmath>

#include "dense/products.h"
#include "simd/half.h"
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

/// out = start + left right, or left^T right if `turned`, of the shape of this product.
template <class T>
void check_product(const std::vector<T>& out, const std::vector<T>& start,
                   const std::vector<T>& left, const std::vector<T>& right, const Shape& s,
                   bool turned) {
  for (std::int64_t i = 0; i < s.rows; ++i)
    for (std::int64_t c = 0; c < s.columns; ++c) {
      double sum = start[at(i, c, s.columns)];
      for (std::int64_t k = 0; k < s.inner; ++k)
        sum += double(left[turned ? at(k, i, s.rows) : at(i, k, s.inner)]) *
               double(right[at(k, c, s.columns)]);
      check_sum(out[at(i, c, s.columns)], sum);
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
  check_product(out, from, rows, matrix, s, false);
  check_product(total, matrix, rows, from, {s.inner, s.rows, s.columns}, true);
}

/// Pieces of rows, which threads share, are summed to the same bits.
template <class T>
void test_tall(Storage storage, const Shape& s, Isa isa) {
  const auto left = random_dense<T>(s.rows * s.inner, 3),
             right = random_dense<T>(s.rows * s.columns, 5);
  const auto start = random_dense<T>(s.inner * s.columns, 7);
  std::vector<T> alone = start, together = start;
  contract_tall({left.data(), right.data(), alone.data(), s.rows, s.inner, s.columns, s.columns},
                storage, storage, 1, isa);
  contract_tall({left.data(), right.data(), together.data(), s.rows, s.inner, s.columns, s.columns},
                storage, storage, 3, isa);
  check(alone == together, "bits of a contraction on threads");
  check_product(alone, start, left, right, {s.inner, s.rows, s.columns}, true);
}

/// Rows of 16 bits beside results of 32, and the other way round, in blocks and what is left.
void test_widened(bool rows_are_half, std::int64_t count, Isa isa) {
  constexpr std::int64_t kInner = 70, kColumns = 19;
  const auto wide = random_dense<float>(count * kInner, 3);
  const auto other = random_dense<float>(count * kColumns, 9);
  const auto matrix = random_dense<float>(kInner * kColumns, 7),
             bias = random_dense<float>(kColumns, 1);
  std::vector<std::uint16_t> half(rows_are_half ? wide.size() : other.size());
  std::vector<float> exact(half.size());
  for (std::size_t i = 0; i < half.size(); ++i) {
    half[i] = half::to_bfloat16((rows_are_half ? wide : other)[i]).bits;
    exact[i] = half::to_float(BFloat16{half[i]});
  }
  const auto& left = rows_are_half ? exact : wide;
  const void* const rows = rows_are_half ? static_cast<const void*>(half.data()) : wide.data();
  const Storage first = rows_are_half ? Storage::kBFloat16 : Storage::kFloat32;
  const Storage second = rows_are_half ? Storage::kFloat32 : Storage::kBFloat16;
  const Buffer panels =
      pack({matrix.data(), kInner, kColumns, kColumns, 1}, Storage::kFloat32, isa);
  std::vector<float> out(other.size());
  std::vector<std::uint16_t> bits(other.size());
  MultiplyArguments a{rows, panels.get(), bias.data(), out.data(), count, kInner, kColumns};
  a.repeats = true;
  if (!rows_are_half) a.out = bits.data();
  multiply_widened(a, first, second, 2, isa);
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t c = 0; c < kColumns; ++c) {
      double sum = bias[at(0, c, kColumns)];
      for (std::int64_t k = 0; k < kInner; ++k)
        sum += double(left[at(i, k, kInner)]) * double(matrix[at(k, c, kColumns)]);
      if (rows_are_half)
        check_sum(out[at(i, c, kColumns)], sum);
      else
        check(std::abs(double(half::to_float(BFloat16{bits[at(i, c, kColumns)]})) - sum) <=
                  0.01 * (1 + std::abs(sum)),
              "a narrowed product");
    }
  std::vector<float> total = matrix;
  const void* const right = rows_are_half ? static_cast<const void*>(other.data()) : half.data();
  contract_tall({rows, right, total.data(), count, kInner, kColumns, kColumns}, first, second, 2,
                isa);
  check_product(total, matrix, left, rows_are_half ? other : exact, {kInner, count, kColumns},
                true);
}

void test_all(Isa isa) {
  for (const bool rows_are_half : {true, false})
    for (const std::int64_t count : {0, 1, 192, 500}) test_widened(rows_are_half, count, isa);
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
