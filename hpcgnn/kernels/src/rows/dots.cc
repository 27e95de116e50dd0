#include "rows/dots.h"

#include <algorithm>

#include "parallel.h"
#include "rows/rows.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {

void row_dots(const RowDots& a) {
  const auto kernel = table_of<RowsTable>(a.isa).row_dots.dots[static_cast<int>(a.storage)];
  const std::int64_t products = a.count * std::max<std::int64_t>(1, a.width);
  RowChunks(a.num_queries, products, a.num_threads, 1 << 18).run(kernel, a);
}

}  // namespace hpcgnn::kernels
