// Combinations of rows with their edges' ends, row norms, and the adjoints, against plain loops.
#include <cmath>

#include "messages/messages.h"
#include "testing.h"

namespace hpcgnn::kernels::testing {
namespace {

constexpr std::int64_t kEdges = 301, kTargets = 40, kSources = 57;
constexpr double kEps = 1e-5;

std::vector<std::int32_t> random_ids(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> ids(kEdges);
  for (auto& id : ids) id = static_cast<std::int32_t>(random() % static_cast<unsigned>(count));
  return ids;
}

template <class T>
void check_near(const std::vector<T>& found, const std::vector<double>& expected,
                const char* what) {
  check(found.size() == expected.size(), what);
  const double tolerance = sizeof(T) == 4 ? 2e-4 : 1e-11;
  for (std::size_t i = 0; i < found.size(); ++i)
    check(std::abs(static_cast<double>(found[i]) - expected[i]) <=
              tolerance * (1 + std::abs(expected[i])),
          what);
}

template <class T>
void test_combine(Storage storage, std::int64_t width, Activation activation, int threads,
                  Isa isa) {
  const auto target_ids = random_ids(kTargets, 3), source_ids = random_ids(kSources, 5);
  const auto rows = random_dense<T>(kEdges * width, 7), upper = random_dense<T>(kEdges * width, 9);
  const auto targets = random_dense<T>(kTargets * width, 11);
  const auto sources = random_dense<T>(kSources * width, 13), bias = random_dense<T>(width, 15);
  std::vector<T> out(rows.size()), lower(rows.size()), of_targets(targets.size()),
      of_sources(sources.size()), of_bias(bias.size());
  combine_rows({.rows = rows.data(),
                .targets = targets.data(),
                .target_ids = target_ids.data(),
                .sources = sources.data(),
                .source_ids = source_ids.data(),
                .bias = bias.data(),
                .out = out.data(),
                .num_rows = kEdges,
                .width = width,
                .activation = activation,
                .storage = storage,
                .num_threads = threads,
                .isa = isa});
  combine_rows_gradient({.gradient = upper.data(),
                         .result = activation == Activation::kNone ? nullptr : out.data(),
                         .out = lower.data(),
                         .of_targets = of_targets.data(),
                         .target_ids = target_ids.data(),
                         .num_targets = kTargets,
                         .of_sources = of_sources.data(),
                         .source_ids = source_ids.data(),
                         .num_sources = kSources,
                         .of_bias = of_bias.data(),
                         .num_rows = kEdges,
                         .width = width,
                         .activation = activation,
                         .storage = storage,
                         .num_threads = threads,
                         .isa = isa});
  std::vector<double> results(out.size()), lowers(out.size()), to_targets(targets.size()),
      to_sources(sources.size()), to_bias(bias.size());
  for (std::int64_t i = 0; i < kEdges; ++i)
    for (std::int64_t c = 0; c < width; ++c) {
      const std::size_t e = at(i, c, width), b = static_cast<std::size_t>(c);
      const std::size_t t = at(target_ids[static_cast<std::size_t>(i)], c, width);
      const std::size_t s = at(source_ids[static_cast<std::size_t>(i)], c, width);
      const double sum = static_cast<double>(rows[e]) + targets[t] + sources[s] + bias[b];
      double slope = 1, result = sum;
      if (activation != Activation::kNone && sum <= 0) {
        result = activation == Activation::kElu ? std::expm1(sum) : 0;
        slope = activation == Activation::kElu ? result + 1 : 0;
      }
      results[e] = result;
      lowers[e] = slope * static_cast<double>(upper[e]);
      to_targets[t] += lowers[e];
      to_sources[s] += lowers[e];
      to_bias[b] += lowers[e];
    }
  check_near(out, results, "combined rows");
  check_near(lower, lowers, "gradient of combined rows");
  check_near(of_targets, to_targets, "gradient of targets");
  check_near(of_sources, to_sources, "gradient of sources");
  check_near(of_bias, to_bias, "gradient of a bias");
}

template <class T>
void test_norm(Storage storage, std::int64_t width, int threads, Isa isa) {
  const auto rows = random_dense<T>(kEdges * width, 17),
             upper = random_dense<T>(kEdges * width, 19);
  const auto residual = random_dense<T>(kEdges * width, 21), bias = random_dense<T>(width, 23);
  const auto scale = random_dense<T>(width, 25), shift = random_dense<T>(width, 27);
  std::vector<T> out(rows.size()), lower(rows.size()), of_bias(bias.size()), of_scale(bias.size()),
      of_shift(bias.size());
  const NormArguments norm = {.rows = rows.data(),
                              .bias = bias.data(),
                              .scale = scale.data(),
                              .shift = shift.data(),
                              .residual = residual.data(),
                              .out = out.data(),
                              .num_rows = kEdges,
                              .width = width,
                              .eps = kEps,
                              .storage = storage,
                              .num_threads = threads,
                              .isa = isa};
  norm_rows(norm);
  norm_rows_gradient({.norm = norm,
                      .gradient = upper.data(),
                      .out = lower.data(),
                      .of_bias = of_bias.data(),
                      .of_scale = of_scale.data(),
                      .of_shift = of_shift.data()});
  std::vector<double> results(out.size()), lowers(out.size()), to_bias(bias.size()),
      to_scale(bias.size()), to_shift(bias.size());
  const auto columns = static_cast<double>(width);
  for (std::int64_t i = 0; i < kEdges; ++i) {
    double mean = 0, variance = 0, mean_upper = 0, mean_product = 0;
    std::vector<double> y(bias.size()), inner(bias.size());
    for (std::size_t c = 0; c < y.size(); ++c) {
      y[c] = static_cast<double>(rows[at(i, 0, width) + c]) + bias[c];
      mean += y[c] / columns;
    }
    for (const double value : y) variance += (value - mean) * (value - mean) / columns;
    const double inverse = 1 / std::sqrt(variance + kEps);
    for (std::size_t c = 0; c < y.size(); ++c) {
      const std::size_t e = at(i, 0, width) + c;
      y[c] = (y[c] - mean) * inverse;
      inner[c] = static_cast<double>(scale[c]) * upper[e];
      results[e] = residual[e] + scale[c] * y[c] + shift[c];
      to_scale[c] += y[c] * upper[e];
      to_shift[c] += upper[e];
      mean_upper += inner[c] / columns;
      mean_product += inner[c] * y[c] / columns;
    }
    for (std::size_t c = 0; c < y.size(); ++c) {
      const std::size_t e = at(i, 0, width) + c;
      lowers[e] = inverse * (inner[c] - mean_upper - y[c] * mean_product);
      to_bias[c] += lowers[e];
    }
  }
  check_near(out, results, "normed rows");
  // A row of one column has next to no variance: what is left is divided by √eps.
  if (width > 1) {
    check_near(lower, lowers, "gradient of normed rows");
    check_near(of_bias, to_bias, "gradient of their bias");
  }
  check_near(of_scale, to_scale, "gradient of a scale");
  check_near(of_shift, to_shift, "gradient of a shift");
}

template <class T>
void test_type(Storage storage) {
  for (const Isa isa : isas())
    for (const int threads : {1, 3})
      for (const std::int64_t width : {1, 16, 37}) {
        for (const Activation each : {Activation::kNone, Activation::kRelu, Activation::kElu})
          test_combine<T>(storage, width, each, threads, isa);
        test_norm<T>(storage, width, threads, isa);
      }
}

}  // namespace
}  // namespace hpcgnn::kernels::testing

int test_messages(int, char*[]) {
  using namespace hpcgnn::kernels;
  testing::test_type<float>(Storage::kFloat32);
  testing::test_type<double>(Storage::kFloat64);
  return 0;
}
