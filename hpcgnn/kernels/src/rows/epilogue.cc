#include "rows/epilogue.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "parallel.h"
#include "rows/rows.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

constexpr std::int64_t kEpilogueElements = 1 << 16;

template <class Sum>
void add_up(const std::vector<std::byte>& parts, std::int64_t num_parts, std::int64_t width,
            Sum* sums) {
  std::vector<double> total(static_cast<std::size_t>(width));
  const Sum* part = reinterpret_cast<const Sum*>(parts.data());
  for (std::int64_t i = 0; i < num_parts; ++i)
    for (double& each : total) each += static_cast<double>(*part++);
  std::transform(total.begin(), total.end(), sums, [](double each) { return Sum(each); });
}

}  // namespace

void finish_rows(const EpilogueArguments& a) {
  const auto kernel = table_of<RowsTable>(a.isa).epilogue.finish[static_cast<int>(a.storage)];
  RowChunks(a.num_rows, a.width, a.num_threads, kEpilogueElements).run(kernel, a);
}

void finish_rows_gradient(const EpilogueGradient& a) {
  const auto kernel = table_of<RowsTable>(a.isa).epilogue.gradient[static_cast<int>(a.storage)];
  const Storage sum_storage = accumulator_of(a.storage);
  const RowChunks chunks(a.num_rows, a.width, a.num_threads, kEpilogueElements);
  const std::int64_t row_bytes = a.width * storage_bytes(sum_storage);
  std::vector<std::byte> parts(
      a.sums == nullptr ? 0 : static_cast<std::size_t>(chunks.count * row_bytes));
  chunks.run([&](std::int64_t first, std::int64_t last, std::int64_t index) {
    kernel(a, first, last, a.sums == nullptr ? nullptr : parts.data() + index * row_bytes);
  });
  if (a.sums == nullptr) return;
  if (sum_storage == Storage::kFloat64)
    add_up(parts, chunks.count, a.width, static_cast<double*>(a.sums));
  else
    add_up(parts, chunks.count, a.width, static_cast<float*>(a.sums));
}

}  // namespace hpcgnn::kernels
