#include "spmm/transpose.h"

#include <algorithm>
#include <cstring>

#include "parallel.h"
#include "simd/isa.h"
#include "spmm/cache.h"

namespace hpcgnn::kernels {
namespace {

constexpr std::int64_t kLineBytes = 64;

}  // namespace

void spmm_transpose(const SpmmTransposeArguments& a) {
  const std::int64_t row_bytes = a.width * storage_bytes(accumulator_of(a.x_storage));
  if (!a.accumulate) std::memset(a.out, 0, static_cast<std::size_t>(a.num_out_rows * row_bytes));
  if (row_bytes == 0) return;
  // Threads get columns in whole cache lines, so that no two write to the same line.
  const std::int64_t lines = (row_bytes + kLineBytes - 1) / kLineBytes;
  const std::int64_t line_columns = kLineBytes / storage_bytes(accumulator_of(a.x_storage));
  const std::int64_t wanted =
      a.num_nonzeros * a.width < kSerialWork ? 1 : resolve_threads(a.num_threads);
  const std::int64_t shares = std::min(lines, wanted);
  // A table as large as the cache shares it with the pattern and x.
  const bool prefetch = 2 * a.num_out_rows * row_bytes > shares * private_cache_bytes();
  const auto kernel = table_of<SpmmTransposeTable>(a.isa).kernel[static_cast<int>(a.x_storage)];
  parallel_tasks(static_cast<int>(shares), shares, [&](std::int64_t share) {
    kernel({.arguments = &a,
            .first_column = lines * share / shares * line_columns,
            .last_column = std::min(a.width, lines * (share + 1) / shares * line_columns),
            .prefetch = prefetch});
  });
}

}  // namespace hpcgnn::kernels
