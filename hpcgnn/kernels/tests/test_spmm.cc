// Both products against a plain loop in float64, at every instruction set and 1, 3 and 4 threads.
#include <algorithm>
#include <cmath>

#include "spmm/cache.h"
#include "spmm/spmm.h"
#include "spmm/transpose.h"
#include "testing.h"

namespace hpcgnn::kernels::testing {
namespace {

struct Form {
  bool weighted, mean, accumulate, transposed;
};

template <class T>
std::vector<double> reference(const Csr& a, const std::vector<T>& x, std::vector<double> out,
                              std::int64_t width, Form form) {
  if (!form.accumulate) std::fill(out.begin(), out.end(), 0.0);
  for (std::int64_t i = 0; i < a.num_rows(); ++i) {
    const auto [begin, end] =
        std::pair(a.indptr[static_cast<std::size_t>(i)], a.indptr[static_cast<std::size_t>(i) + 1]);
    for (std::int64_t e = begin; e < end; ++e) {
      const std::int64_t j = a.indices[static_cast<std::size_t>(e)];
      const T rounded = static_cast<T>(a.values[static_cast<std::size_t>(e)]);
      const double value = (form.weighted ? static_cast<double>(rounded) : 1.0) /
                           (form.mean ? static_cast<double>(end - begin) : 1.0);
      const std::int64_t from = form.transposed ? i : j, to = form.transposed ? j : i;
      for (std::int64_t c = 0; c < width; ++c)
        out[static_cast<std::size_t>(to * width + c)] +=
            value * static_cast<double>(x[static_cast<std::size_t>(from * width + c)]);
    }
  }
  return out;
}

template <class T>
std::vector<T> product(const Csr& a, const std::vector<T>& values, const std::vector<T>& x,
                       std::vector<T> out, std::int64_t width, Form form, int threads, Isa isa) {
  // The arguments of both have the same names.
  const auto fill = [&](auto& arguments) {
    arguments.indptr = a.indptr.data();
    arguments.indices = a.indices.data();
    arguments.values = form.weighted ? values.data() : nullptr;
    arguments.x = x.data();
    arguments.out = out.data();
    arguments.num_rows = a.num_rows();
    arguments.num_nonzeros = a.num_nonzeros();
    arguments.width = width;
    arguments.x_storage = kStorage<T>;
    arguments.accumulate = form.accumulate;
    arguments.mean = form.mean;
    arguments.num_threads = threads;
    arguments.isa = isa;
  };
  if (form.transposed) {
    SpmmTransposeArguments arguments{};
    fill(arguments);
    arguments.num_out_rows = a.num_columns;
    spmm_transpose(arguments);
  } else {
    SpmmArguments arguments{};
    fill(arguments);
    arguments.num_x_rows = a.num_columns;
    arguments.out_storage = kStorage<T>;
    spmm(arguments);
  }
  return out;
}

template <class T>
void test_form(const Csr& a, std::int64_t width, Form form) {
  const std::int64_t rows_in = form.transposed ? a.num_rows() : a.num_columns;
  const std::int64_t rows_out = form.transposed ? a.num_columns : a.num_rows();
  const auto x = random_dense<T>(rows_in * width, 19);
  const auto before = random_dense<T>(rows_out * width, 23);
  const std::vector<T> values(a.values.begin(), a.values.end());
  const auto expected =
      reference(a, x, std::vector<double>(before.begin(), before.end()), width, form);
  double scale = 1;
  for (const double value : expected) scale = std::max(scale, std::abs(value));
  for (const Isa isa : isas()) {
    const auto out = product(a, values, x, before, width, form, 1, isa);
    for (std::size_t i = 0; i < out.size(); ++i)
      check(std::abs(static_cast<double>(out[i]) - expected[i]) <= kTolerance<T> * scale,
            "the product equals the plain loop");
    for (const int threads : {3, 4})
      check(product(a, values, x, before, width, form, threads, isa) == out,
            "equal bits at any number of threads");
  }
}

void test_tiling() {
  constexpr std::int64_t kCache = 1 << 20, kShared = 1 << 24;
  const auto is = [](Tiling found, std::int64_t bytes, bool packed) {
    return found.bytes == bytes && found.packed == packed;
  };
  check(is(choose_tiling(1000, 1024, 100000, kCache, kShared), 1024, false), "x fits: one tile");
  check(is(choose_tiling(4096, 1024, 4096, kCache, kShared), 1024, false), "few reads: one tile");
  check(is(choose_tiling(4096, 1024, 400000, kCache, kShared), 256, true), "tiles of a quarter");
  check(is(choose_tiling(2000, 1000, 400000, kCache, kShared), 512, true), "whole lines");
  check(is(choose_tiling(100000, 1024, 9000000, kCache, kShared), 128, true), "tiles of two lines");
  check(is(choose_tiling(100000, 256, 9000000, kCache, kShared), 128, true), "x in no cache");
  check(is(choose_tiling(50000, 256, 9000000, kCache, kShared), 256, false),
        "x in the shared cache");
  check(is(choose_tiling(100000, 100, 9000000, kCache, kShared), 100, false),
        "rows narrower than that");
  check(is(choose_tiling(0, 64, 0, kCache, kShared), 64, false), "nothing");
  check(private_cache_bytes() > 0, "some cache");
}

}  // namespace
}  // namespace hpcgnn::kernels::testing

int test_spmm(int, char*[]) {
  using namespace hpcgnn::kernels::testing;
  for (const Csr& a : ugly_matrices())
    for (int bits = 0; bits < 16; ++bits) {
      const Form form{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0};
      const std::vector<std::int64_t> widths{1, 7, 16, 37};
      // Each width with all values of the first two bits, and of the last two.
      const auto one = static_cast<std::size_t>((bits + bits / 4) % 4);
      for (std::size_t i = 0; i < widths.size(); ++i)
        if (i == one || !has_hubs(a)) test_form<float>(a, widths[i], form);
      test_form<double>(a, 19, form);
    }
  const Csr wide = random_csr(std::vector<int>(3000, 16), 3000, 29);
  test_form<float>(wide, 300, {true, false, false, false});
  test_tiling();
  return 0;
}
