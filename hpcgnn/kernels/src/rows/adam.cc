#include "rows/adam.h"

#include <algorithm>
#include <atomic>

#include "parallel.h"
#include "rows/rows.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

constexpr std::int64_t kSerialNumbers = 1 << 15;
constexpr std::int64_t kChunkNumbers = 1 << 14;

void run(const AdamWeights& a, int num_threads, const auto& body) {
  const int threads = a.count < kSerialNumbers ? 1 : resolve_threads(num_threads);
  parallel_tasks(threads, (a.count + kChunkNumbers - 1) / kChunkNumbers, [&](std::int64_t task) {
    body(task * kChunkNumbers, std::min(a.count, (task + 1) * kChunkNumbers));
  });
}

}  // namespace

void adam_means(const AdamWeights& a, const AdamMeans& means, void* squares, int num_threads,
                Isa isa) {
  const auto kernel = table_of<RowsTable>(isa).adam.means[static_cast<int>(a.storage)];
  run(a, num_threads,
      [&](std::int64_t first, std::int64_t last) { kernel(a, means, squares, first, last); });
}

bool adam_weights(const AdamWeights& a, const AdamLength& length, const void* roots,
                  int num_threads, Isa isa) {
  const auto kernel = table_of<RowsTable>(isa).adam.weights[static_cast<int>(a.storage)];
  std::atomic<bool> finite{true};
  run(a, num_threads, [&](std::int64_t first, std::int64_t last) {
    if (!kernel(a, length, roots, first, last)) finite = false;
  });
  return finite;
}

}  // namespace hpcgnn::kernels
