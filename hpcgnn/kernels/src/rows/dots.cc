#include "rows/dots.h"

#include <algorithm>

#include "parallel.h"
#include "rows/rows.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {

void row_dots(const RowDots& a) {
  const auto kernel = table_of<RowsTable>(a.isa).row_dots.dots[static_cast<int>(a.storage)];
  const std::int64_t products = a.count * std::max<std::int64_t>(1, a.width);
  const int threads =
      a.num_queries * products < kSerialElements ? 1 : resolve_threads(a.num_threads);
  const std::int64_t chunk = rows_of_chunk(1 << 18, products);
  parallel_tasks(threads, (a.num_queries + chunk - 1) / chunk, [&](std::int64_t task) {
    kernel(a, task * chunk, std::min(a.num_queries, (task + 1) * chunk));
  });
}

}  // namespace hpcgnn::kernels
