// Coded columns: decoding returns the originals, and products with both have equal bits.
#include <algorithm>
#include <limits>

#include "coded/blocks.h"
#include "coded/coded.h"
#include "spmm/spmm.h"
#include "testing.h"

namespace hpcgnn::kernels::testing {
namespace {

/// Columns in any order and of any size, in rows of any length.
Csr random_pattern(unsigned seed) {
  std::mt19937 random(seed);
  Csr a;
  a.num_columns = std::int64_t{1} << random() % 32;
  const unsigned rows = random() % 400,
                 longest = 1 + (random() % 2 ? random() % 8 : random() % 700);
  const bool sorted = seed % 3 != 0, alike = seed % 4 == 0;
  for (unsigned i = 0; i < rows; ++i) {
    const unsigned length = alike ? longest : random() % longest;
    for (unsigned k = 0; k < length; ++k)
      a.indices.push_back(static_cast<std::int32_t>(
          random() % std::min<std::int64_t>(a.num_columns, std::numeric_limits<int>::max())));
    if (sorted) std::sort(a.indices.begin() + a.indptr.back(), a.indices.end());
    a.indptr.push_back(a.num_nonzeros());
  }
  return a;
}

/// The stencil of a square grid, without its ends: rows are those before them, moved by one.
Csr stencil(int side) {
  Csr a;
  a.num_columns = std::int64_t{side} * side;
  for (int i = 0; i < side * side; ++i) {
    for (const int step : {-side, -1, 0, 1, side})
      if (i + step >= 0 && i + step < side * side) a.indices.push_back(i + step);
    a.indptr.push_back(a.num_nonzeros());
  }
  return a;
}

void test_decoding(const Csr& a, Isa isa) {
  const CodedColumns coded(a.indptr.data(), a.indices.data(), a.num_rows(), 2);
  check(coded.size() == a.num_nonzeros(), "all entries are coded");
  const RowRange rows{a.indptr.data(), a.indptr.data() + 1, 0, a.num_rows()};
  for_blocks(
      coded, a.indptr.data(), a.num_rows(), rows, isa,
      [&](const std::int32_t* indices, std::int64_t known, std::int64_t first, std::int64_t last) {
        const std::int64_t begin = a.indptr[static_cast<std::size_t>(first)];
        const std::int64_t end = a.indptr[static_cast<std::size_t>(last)];
        check(end <= known || end - begin > kBlockEntries, "rows lie in their block");
        for (std::int64_t e = begin; e < known; ++e)
          check(indices[e] == a.indices[static_cast<std::size_t>(e)],
                "decoding gives columns back");
      });
}

void test_products(const Csr& a, std::int64_t width, bool weighted, Isa isa) {
  const CodedColumns coded(a.indptr.data(), a.indices.data(), a.num_rows(), 1);
  const auto x = random_dense<float>(a.num_columns * width, 19);
  const std::vector<float> values(a.values.begin(), a.values.end());
  const auto product = [&](bool is_coded, int threads) {
    std::vector<float> out(static_cast<std::size_t>(a.num_rows() * width));
    SpmmArguments arguments{};
    arguments.indptr = a.indptr.data();
    arguments.indices = is_coded ? nullptr : a.indices.data();
    arguments.coded = is_coded ? &coded : nullptr;
    arguments.values = weighted ? values.data() : nullptr;
    arguments.x = x.data();
    arguments.out = out.data();
    arguments.num_rows = a.num_rows();
    arguments.num_nonzeros = a.num_nonzeros();
    arguments.num_x_rows = a.num_columns;
    arguments.width = width;
    arguments.num_threads = threads;
    arguments.isa = isa;
    spmm(arguments);
    return out;
  };
  const std::vector<float> plain = product(false, 1);
  for (const int threads : {1, 3})
    check(product(true, threads) == plain, "coded columns give equal bits");
}

}  // namespace
}  // namespace hpcgnn::kernels::testing

int test_coded(int, char*[]) {
  using namespace hpcgnn::kernels::testing;
  for (const hpcgnn::kernels::Isa isa : isas()) {
    for (unsigned seed = 0; seed < 60; ++seed) test_decoding(random_pattern(seed), isa);
    for (const int side : {1, 2, 5, 40}) test_decoding(stencil(side), isa);
    for (const Csr& a : ugly_matrices()) {
      test_decoding(a, isa);
      for (const std::int64_t width : {1, 16, 37})
        for (const bool weighted : {false, true}) test_products(a, width, weighted, isa);
    }
    test_products(random_csr(std::vector<int>(3000, 16), 3000, 29), 300, true, isa);
  }
  return 0;
}
