// Gather, scatter-add, conversion, dropout and transposition under 1 to 4 threads.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "dense/mapped_loss.h"
#include "pattern/pattern.h"
#include "rows/rows.h"
#include "simd/half.h"
#include "testing.h"

namespace hpcgnn::kernels::testing {
namespace {

constexpr std::int64_t kRows = 3001, kNumSources = 977, kWidth = 37;

std::vector<std::int32_t> random_rows(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> rows(kRows);
  for (auto& row : rows) row = static_cast<std::int32_t>(random() % kNumSources);
  return rows;
}

RowsArguments arguments(const void* source, const std::vector<std::int32_t>& rows, void* out,
                        Storage from, Storage to, std::int64_t num_out_rows, int threads, Isa isa) {
  return {.source = source,
          .rows = rows.data(),
          .out = out,
          .num_rows = kRows,
          .num_out_rows = num_out_rows,
          .width = kWidth,
          .source_storage = from,
          .out_storage = to,
          .num_threads = threads,
          .isa = isa};
}

void test_gather_and_scatter(int threads, Isa isa) {
  const auto rows = random_rows(31);
  const auto x = random_dense<float>(kNumSources * kWidth, 37);
  std::vector<float> gathered(kRows * kWidth), back(kNumSources * kWidth), expected(back.size());
  gather_rows(x.data(), rows.data(), kRows, kWidth * 4, gathered.data(), threads);
  scatter_add_rows(arguments(gathered.data(), rows, back.data(), Storage::kFloat32,
                             Storage::kFloat32, kNumSources, threads, isa));
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t c = 0; c < kWidth; ++c) {
      const std::size_t from = static_cast<std::size_t>(rows[i]) * kWidth + c;
      check(gathered[i * kWidth + c] == x[from], "gathered rows are copies");
      expected[from] += x[from];
    }
  check(back == expected, "scatter adds in order");
}

void test_row_dots(int threads, Isa isa) {
  constexpr std::int64_t kCount = 13;
  const auto rows = random_rows(35);
  const auto queries = random_dense<double>(kRows / kCount * kWidth, 45);
  const auto x = random_dense<double>(kNumSources * kWidth, 47);
  std::vector<double> out(static_cast<std::size_t>(kRows / kCount * kCount));
  row_dots({.queries = queries.data(),
            .x = x.data(),
            .rows = rows.data(),
            .out = out.data(),
            .num_queries = kRows / kCount,
            .count = kCount,
            .width = kWidth,
            .storage = Storage::kFloat64,
            .num_threads = threads,
            .isa = isa});
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double* const query = queries.data() + i / kCount * kWidth;
    const double* const row = x.data() + static_cast<std::size_t>(rows[i]) * kWidth;
    const double expected = std::inner_product(query, query + kWidth, row, 0.0);
    check(std::abs(out[i] - expected) < 1e-12, "dot products of the rows named");
  }
}

void test_integers(int threads, Isa isa) {
  const auto x = random_dense<float>(kRows * kWidth, 48);
  std::vector<std::int8_t> integers(x.size());
  std::vector<float> scales(kRows), ones(kWidth, 1.0f), back(x.size());
  integer_rows({.x = x.data(),
                .out = integers.data(),
                .scales = scales.data(),
                .num_rows = kRows,
                .width = kWidth,
                .storage = Storage::kFloat32,
                .num_threads = threads,
                .isa = isa});
  const std::vector<std::int32_t> sums(integers.begin(), integers.end());
  scale_sums({.sums = sums.data(),
              .row_scales = scales.data(),
              .column_scales = ones.data(),
              .bias = nullptr,
              .out = back.data(),
              .accumulate = false,
              .num_rows = kRows,
              .width = kWidth,
              .storage = Storage::kFloat32,
              .num_threads = threads,
              .isa = isa});
  for (std::size_t i = 0; i < x.size(); ++i)
    check(std::abs(back[i] - x[i]) <= 0.501f * scales[i / kWidth], "the nearest integer");
}

void test_dense_transpose(int threads) {
  const auto x = random_dense<float>(kNumSources * kWidth, 39);
  std::vector<float> turned(x.size());
  transpose_rows(x.data(), kNumSources, kWidth, 4, turned.data(), threads);
  for (std::size_t i = 0; i < kNumSources; ++i)
    for (std::size_t c = 0; c < kWidth; ++c)
      check(turned[c * kNumSources + i] == x[i * kWidth + c], "rows become columns");
}

void test_conversion(int threads, Isa isa) {
  const auto rows = random_rows(41);
  const auto x = random_dense<float>(kNumSources * kWidth, 43);
  std::vector<Float16> narrow(kRows * kWidth);
  std::vector<float> wide(kNumSources * kWidth);
  convert_rows(arguments(x.data(), rows, narrow.data(), Storage::kFloat32, Storage::kFloat16, kRows,
                         threads, isa));
  scatter_add_rows(arguments(narrow.data(), rows, wide.data(), Storage::kFloat16, Storage::kFloat32,
                             kNumSources, threads, isa));
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t c = 0; c < kWidth; ++c)
      check(narrow[i * kWidth + c].bits ==
                half::to_float16(x[static_cast<std::size_t>(rows[i]) * kWidth + c]).bits,
            "rounded like one element at a time");
}

void test_half_round_trip() {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Float16 f{static_cast<std::uint16_t>(bits)};
    const BFloat16 b{static_cast<std::uint16_t>(bits)};
    const float wide_f = half::to_float(f), wide_b = half::to_float(b);
    check(std::isnan(wide_f) ? std::isnan(half::to_float(half::to_float16(wide_f)))
                             : half::to_float16(wide_f).bits == f.bits,
          "float16 round trip");
    check(std::isnan(wide_b) ? std::isnan(half::to_float(half::to_bfloat16(wide_b)))
                             : half::to_bfloat16(wide_b).bits == b.bits,
          "bfloat16 round trip");
  }
}

void test_dropout(int threads, Isa isa) {
  const std::vector<double> ones(kRows * kWidth, 1.0);
  const std::vector<float> narrow_ones(ones.size(), 1.0f);
  std::vector<double> out(ones.size());
  std::vector<float> narrow(ones.size());
  std::vector<std::int64_t> ids(kRows);
  std::iota(ids.begin(), ids.end(), std::int64_t{1} << 40);
  EpilogueArguments epilogue{.source = ones.data(),
                             .bias = nullptr,
                             .row_ids = ids.data(),
                             .out = out.data(),
                             .num_rows = kRows,
                             .width = kWidth,
                             .key = 7,
                             .p = 0.25,
                             .rectify = false,
                             .storage = Storage::kFloat64,
                             .num_threads = threads,
                             .isa = isa};
  finish_rows(epilogue);
  epilogue.source = narrow_ones.data();
  epilogue.out = narrow.data();
  epilogue.storage = Storage::kFloat32;
  finish_rows(epilogue);
  std::int64_t kept = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    check((out[i] == 0) == (narrow[i] == 0), "one mask for both precisions");
    kept += out[i] != 0;
  }
  check(std::abs(static_cast<double>(kept) / static_cast<double>(out.size()) - 0.75) < 0.01,
        "three of four are kept");
}

void test_softmax_loss(int threads, Isa isa) {
  const auto rows = random_rows(53);
  const auto logits = random_dense<float>(kRows * kWidth, 59);
  std::vector<std::int64_t> labels(kRows);
  for (std::size_t i = 0; i < rows.size(); ++i) labels[i] = rows[i] % kWidth;
  std::vector<float> losses(kRows), factors(kRows), gradient(kRows * kWidth);
  for (std::size_t i = 0; i < rows.size(); ++i) factors[i] = static_cast<float>(1 + i % 3);
  const SoftmaxTargets targets{.logits = logits.data(),
                               .labels = labels.data(),
                               .num_rows = kRows,
                               .width = kWidth,
                               .smoothing = 0.25,
                               .storage = Storage::kFloat32,
                               .num_threads = threads,
                               .isa = isa};
  softmax_loss({targets, losses.data(), {factors.data(), 2.0, gradient.data()}});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const float* const row = logits.data() + i * kWidth;
    double total = 0, mean = 0, rest = 0;
    for (std::size_t c = 0; c < kWidth; ++c) {
      total += std::exp(static_cast<double>(row[c]));
      mean += static_cast<double>(row[c]) / kWidth;
      rest += static_cast<double>(gradient[i * kWidth + c]);
    }
    const auto label = static_cast<std::size_t>(labels[i]);
    const double loss = std::log(total) - 0.75 * static_cast<double>(row[label]) - 0.25 * mean;
    check(std::abs(static_cast<double>(losses[i]) - loss) < 1e-5, "cross entropy");
    const double share = std::exp(static_cast<double>(row[label])) / total;
    const double expected = 2 * static_cast<double>(factors[i]) * (share - 0.75 - 0.25 / kWidth);
    check(std::abs(static_cast<double>(gradient[i * kWidth + label]) - expected) < 1e-4,
          "softmax minus target");
    check(std::abs(rest) < 1e-4, "both sum up to one");
  }

  // A map that changes nothing.
  std::vector<float> weight(kWidth * kWidth), bias(kWidth), same(kRows), for_rows(kRows * kWidth),
      for_weight(kWidth * kWidth), for_bias(kWidth);
  for (std::size_t c = 0; c < kWidth; ++c) weight[c * kWidth + c] = 1;
  const LogitMap map{logits.data(), weight.data(),     bias.data(), kRows, kWidth,
                     kWidth,        Storage::kFloat32, threads,     isa};
  mapped_loss(map, SoftmaxLoss{targets, same.data(), {factors.data(), 2.0, nullptr}},
              {for_rows.data(), for_weight.data(), for_bias.data()});
  check(same == losses, "losses of a map");
  check(for_rows == gradient, "gradient of the rows of a map");
  for (std::size_t c = 0; c < kWidth; ++c) {
    double first = 0, total = 0;
    for (std::size_t i = 0; i < kRows; ++i) {
      const auto each = static_cast<double>(gradient[i * kWidth + c]);
      first += each * static_cast<double>(logits[i * kWidth]);
      total += each;
    }
    check(std::abs(static_cast<double>(for_weight[c * kWidth]) - first) < 1e-3, "of its weight");
    check(std::abs(static_cast<double>(for_bias[c]) - total) < 1e-3, "of its bias");
  }
}

void test_transpose(const Csr& a, int threads) {
  const std::size_t nonzeros = a.indices.size();
  std::vector<std::int64_t> indptr(static_cast<std::size_t>(a.num_columns) + 1), source(nonzeros);
  std::vector<std::int32_t> indices(nonzeros);
  std::vector<double> values(nonzeros);
  transpose_csr({a.indptr.data(), a.indices.data(), a.num_rows(), a.num_columns}, a.values.data(),
                8, {indptr.data(), indices.data(), values.data(), source.data()}, threads);
  for (std::size_t j = 0; j + 1 < indptr.size(); ++j)
    for (auto e = static_cast<std::size_t>(indptr[j]); e < static_cast<std::size_t>(indptr[j + 1]);
         ++e) {
      const auto from = static_cast<std::size_t>(source[e]);
      const auto row = static_cast<std::size_t>(indices[e]);
      check(a.indices[from] == static_cast<std::int32_t>(j), "the entry is of this column");
      check(source[e] >= a.indptr[row] && source[e] < a.indptr[row + 1], "and of this row");
      check(values[e] == a.values[from], "with its value");
    }
}

}  // namespace
}  // namespace hpcgnn::kernels::testing

int test_rows(int, char*[]) {
  using namespace hpcgnn::kernels::testing;
  test_half_round_trip();
  for (const int threads : {1, 2, 3, 4}) {
    for (const hpcgnn::kernels::Isa isa : isas()) {
      test_gather_and_scatter(threads, isa);
      test_row_dots(threads, isa);
      test_integers(threads, isa);
      test_conversion(threads, isa);
      test_dropout(threads, isa);
      test_softmax_loss(threads, isa);
    }
    test_dense_transpose(threads);
    for (const Csr& a : ugly_matrices()) test_transpose(a, threads);
  }
  return 0;
}
