#include "rows/quantised.h"

#include <algorithm>

#include "parallel.h"
#include "rows/rows.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

void run(QuantisedTable::Kernel kernel, const QuantisedArguments& a) {
  if (a.width == 0) return;
  const int threads = a.num_rows * a.width < kSerialElements ? 1 : resolve_threads(a.num_threads);
  const std::int64_t chunk = rows_of_chunk(1 << 16, a.width);
  parallel_tasks(threads, (a.num_rows + chunk - 1) / chunk, [&](std::int64_t task) {
    kernel(a, task * chunk, std::min(a.num_rows, (task + 1) * chunk));
  });
}

}  // namespace

void quantise_rows(const QuantisedArguments& a) {
  run(table_of<RowsTable>(a.isa).quantised.quantise[static_cast<int>(a.storage)], a);
}

void dequantise_rows(const QuantisedArguments& a) {
  run(table_of<RowsTable>(a.isa).quantised.dequantise[static_cast<int>(a.storage)], a);
}

}  // namespace hpcgnn::kernels
