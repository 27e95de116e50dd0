// Forward and backward against plain loops in float64, at every instruction set and 1, 3 and 4
// threads; and exp against that of the standard library.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "attention/attention.h"
#include "pattern/pattern.h"
#include "simd/exponential.h"
#include "simd/portable.h"
#include "testing.h"

namespace hpcgnn::kernels::testing {
namespace {

constexpr double kSlope = 0.25;

/// A layer and its result; gradients are those of z, source and target one after the other.
template <class T>
struct Layer {
  std::int64_t heads, width;
  std::vector<T> z, source, target, grad;
};

template <class T>
struct Result {
  std::vector<T> lse, out, dz, dsource, dtarget;
};

template <class T>
Layer<T> random_layer(const Csr& a, std::int64_t heads, std::int64_t width) {
  return {heads,
          width,
          random_dense<T>(a.num_columns * heads * width, 31),
          random_dense<T>(a.num_columns * heads, 37),
          random_dense<T>(a.num_rows() * heads, 41),
          random_dense<T>(a.num_rows() * heads * width, 43)};
}

/// Calls body(row, column) for the edges of all rows.
template <class Body>
void for_edges(const Csr& a, const Body& body) {
  for (std::int64_t i = 0; i < a.num_rows(); ++i)
    for (std::int64_t e = a.indptr[at(i, 0, 1)]; e < a.indptr[at(i, 1, 1)]; ++e)
      body(i, std::int64_t{a.indices[at(e, 0, 1)]});
}

Csr transposed(const Csr& a) {
  Csr result;
  result.num_columns = a.num_rows();
  result.indptr.resize(static_cast<std::size_t>(a.num_columns) + 1);
  result.indices.resize(a.indices.size());
  transpose_csr({a.indptr.data(), a.indices.data(), a.num_rows(), a.num_columns}, nullptr, 4,
                {result.indptr.data(), result.indices.data(), nullptr, nullptr}, 1);
  return result;
}

template <class T>
Result<double> reference(const Csr& a, const Layer<T>& l) {
  const std::int64_t heads = l.heads, width = l.width;
  Result<double> r;
  r.lse.assign(l.target.size(), -std::numeric_limits<double>::infinity());
  r.out.assign(l.grad.size(), 0);
  r.dz.assign(l.z.size(), 0);
  r.dsource.assign(l.source.size(), 0);
  r.dtarget.assign(l.target.size(), 0);
  std::vector<double> total(l.target.size(), 0), delta(l.target.size(), 0);
  for (std::int64_t h = 0; h < heads; ++h) {
    const auto sum = [&](std::int64_t i, std::int64_t j) {
      return static_cast<double>(l.target[at(i, h, heads)]) +
             static_cast<double>(l.source[at(j, h, heads)]);
    };
    const auto logit = [&](std::int64_t i, std::int64_t j) {
      return sum(i, j) > 0 ? sum(i, j) : kSlope * sum(i, j);
    };
    const auto alpha = [&](std::int64_t i, std::int64_t j) {
      return std::exp(logit(i, j) - r.lse[at(i, h, heads)]);
    };
    // Operands are small enough that no maximum needs to be subtracted.
    for_edges(a, [&](std::int64_t i, std::int64_t j) {
      total[at(i, h, heads)] += std::exp(logit(i, j));
    });
    for (std::int64_t i = 0; i < a.num_rows(); ++i)
      r.lse[at(i, h, heads)] = std::log(total[at(i, h, heads)]);
    for_edges(a, [&](std::int64_t i, std::int64_t j) {
      const double share = alpha(i, j);
      for (std::int64_t c = h * width; c < (h + 1) * width; ++c)
        r.out[at(i, c, heads * width)] += share * static_cast<double>(l.z[at(j, c, heads * width)]);
    });
    for (std::int64_t i = 0; i < a.num_rows(); ++i)
      for (std::int64_t c = h * width; c < (h + 1) * width; ++c)
        delta[at(i, h, heads)] +=
            static_cast<double>(l.grad[at(i, c, heads * width)]) * r.out[at(i, c, heads * width)];
    for_edges(a, [&](std::int64_t i, std::int64_t j) {
      const double share = alpha(i, j);
      double inner = 0;
      for (std::int64_t c = h * width; c < (h + 1) * width; ++c) {
        const double g = static_cast<double>(l.grad[at(i, c, heads * width)]);
        inner += g * static_cast<double>(l.z[at(j, c, heads * width)]);
        r.dz[at(j, c, heads * width)] += share * g;
      }
      const double d = share * (inner - delta[at(i, h, heads)]) * (sum(i, j) > 0 ? 1 : kSlope);
      r.dsource[at(j, h, heads)] += d;
      r.dtarget[at(i, h, heads)] += d;
    });
  }
  return r;
}

template <class T>
Result<T> compute(const Csr& a, const Layer<T>& l, int threads, Isa isa) {
  Result<T> r;
  r.lse.assign(l.target.size(), -std::numeric_limits<T>::infinity());
  r.out.assign(l.grad.size(), std::numeric_limits<T>::quiet_NaN());
  r.dz.assign(l.z.size(), 0);
  r.dsource.assign(l.source.size(), 0);
  r.dtarget.assign(l.target.size(), 0);
  std::vector<T> total(l.target.size(), 0), delta(l.target.size());
  AttentionBlock block{.indptr = a.indptr.data(),
                       .indices = a.indices.data(),
                       .rows = nullptr,
                       .row_ids = nullptr,
                       .column_ids = nullptr,
                       .values = l.z.data(),
                       .source = l.source.data(),
                       .target = l.target.data(),
                       .edges = nullptr,
                       .keyed = false,
                       .whole_lines = false,
                       .num_rows = a.num_rows(),
                       .num_columns = a.num_columns,
                       .num_nonzeros = a.num_nonzeros(),
                       .num_targets = a.num_rows(),
                       .num_heads = l.heads,
                       .head_width = l.width,
                       .weight_dropout = {0, 0},
                       .edge_dropout = {0, 0},
                       .slope = kSlope,
                       .storage = kStorage<T>,
                       .num_threads = threads,
                       .isa = isa};
  const AttentionState state{r.lse.data(), total.data(), r.out.data()};
  const StateShape shape{a.num_rows(), l.heads, l.width};
  additive_forward(block, state);
  const std::int64_t pitch = shape.num_heads * shape.head_width;
  finish_states<T>(state, shape, {r.out.data(), pitch}, nullptr, threads);
  inner_products_of_heads<T>({l.grad.data(), pitch}, {r.out.data(), pitch}, nullptr, shape,
                             delta.data(), nullptr, threads);
  const Csr transpose = transposed(a);
  block.indptr = transpose.indptr.data();
  block.indices = transpose.indices.data();
  additive_backward(block, {.lse = r.lse.data(),
                            .grad = l.grad.data(),
                            .delta = delta.data(),
                            .dz = r.dz.data(),
                            .dsource = r.dsource.data(),
                            .dtarget = r.dtarget.data(),
                            .weights = nullptr,
                            .dweights = nullptr,
                            .dedges = nullptr,
                            .rounded = {}});
  return r;
}

template <class T>
void check_close(const std::vector<T>& found, const std::vector<double>& expected,
                 const char* what) {
  double scale = 1;
  for (const double value : expected)
    if (std::isfinite(value)) scale = std::max(scale, std::abs(value));
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double value = static_cast<double>(found[i]);
    check(value == expected[i] || std::abs(value - expected[i]) <= kTolerance<T> * scale, what);
  }
}

template <class T>
void test_layer(const Csr& a, std::int64_t heads, std::int64_t width) {
  const Layer<T> layer = random_layer<T>(a, heads, width);
  const Result<double> expected = reference(a, layer);
  for (const Isa isa : isas()) {
    const Result<T> first = compute(a, layer, 1, isa);
    check_close(first.lse, expected.lse, "log of the sum of exponentials");
    check_close(first.out, expected.out, "result");
    check_close(first.dz, expected.dz, "gradient of z");
    check_close(first.dsource, expected.dsource, "gradient of source");
    check_close(first.dtarget, expected.dtarget, "gradient of target");
    for (const int threads : {3, 4}) {
      const Result<T> r = compute(a, layer, threads, isa);
      check(r.out == first.out && r.lse == first.lse && r.dz == first.dz &&
                r.dsource == first.dsource && r.dtarget == first.dtarget,
            "equal bits at any number of threads");
    }
  }
}

template <class V>
void test_exponential(double lowest, double highest) {
  using T = typename V::Scalar;
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  double worst = 0;
  for (double x = lowest; x < highest; x += (highest - lowest) / 200003) {
    const T argument = static_cast<T>(x);
    const long double exact = std::exp(static_cast<long double>(argument));
    const long double error = static_cast<long double>(exponential_of<V>(argument)) / exact - 1;
    worst = std::max(worst, static_cast<double>(std::abs(error)));
  }
  check(worst <= 2 * static_cast<double>(std::numeric_limits<T>::epsilon()), "exp is accurate");
  check(exponential_of<V>(0) == 1, "exp(0)");
  check(exponential_of<V>(-kInfinity) == 0, "exp(-inf)");
  check(exponential_of<V>(T(-1e30)) == 0, "exp of what underflows");
  check(std::isfinite(exponential_of<V>(T(1e30))), "exp of what overflows");
  check(std::isnan(exponential_of<V>(std::numeric_limits<T>::quiet_NaN())), "exp(NaN)");
}

}  // namespace
}  // namespace hpcgnn::kernels::testing

int test_attention(int, char*[]) {
  using namespace hpcgnn::kernels::testing;
  test_exponential<hpcgnn::kernels::portable::F32>(-87.3, 88);
  test_exponential<hpcgnn::kernels::portable::F64>(-708.3, 709);
  for (const Csr& a : ugly_matrices()) {
    if (!has_hubs(a)) {
      test_layer<float>(a, 1, 1);
      test_layer<float>(a, 3, 7);
    }
    test_layer<float>(a, 2, 37);
    test_layer<double>(a, 2, 19);
  }
  return 0;
}
