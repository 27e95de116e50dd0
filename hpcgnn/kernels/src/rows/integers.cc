#include "rows/integers.h"

#include <algorithm>

#include "parallel.h"
#include "rows/rows.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

/// Columns of a task: whole lines of 8-bit integers.
constexpr std::int64_t kTogether = 64;

template <class Kernel, class Arguments>
void run(Kernel kernel, const Arguments& a) {
  RowChunks(a.num_rows, a.width, a.num_threads).run(kernel, a);
}

}  // namespace

void integer_rows(const Integers& a) {
  run(table_of<RowsTable>(a.isa).integers.rows[static_cast<int>(a.storage)], a);
}

void integer_columns(const Integers& a) {
  const auto kernel = table_of<RowsTable>(a.isa).integers.columns[static_cast<int>(a.storage)];
  const int threads = a.num_rows * a.width < kSerialElements ? 1 : resolve_threads(a.num_threads);
  parallel_tasks(threads, (a.width + kTogether - 1) / kTogether, [&](std::int64_t task) {
    kernel(a, task * kTogether, std::min(a.width, (task + 1) * kTogether));
  });
}

void scale_sums(const IntegerSums& a) {
  run(table_of<RowsTable>(a.isa).integers.sums[static_cast<int>(a.storage)], a);
}

}  // namespace hpcgnn::kernels
