#include "rows/sigmoid_loss.h"

#include <algorithm>

#include "parallel.h"
#include "rows/rows.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

constexpr std::int64_t kSerialElements = 1 << 13;
constexpr std::int64_t kChunkElements = 1 << 15;

template <class Kernel>
void for_chunks(const SigmoidTargets& t, const Kernel& kernel) {
  const int threads = t.num_rows * t.width < kSerialElements ? 1 : resolve_threads(t.num_threads);
  const std::int64_t chunk =
      std::max<std::int64_t>(1, kChunkElements / std::max<std::int64_t>(1, t.width));
  parallel_tasks(threads, (t.num_rows + chunk - 1) / chunk, [&](std::int64_t task) {
    kernel(task * chunk, std::min(t.num_rows, (task + 1) * chunk));
  });
}

const SigmoidLossTable& table(const SigmoidTargets& targets) {
  return table_of<RowsTable>(targets.isa).sigmoid_loss;
}

}  // namespace

void sigmoid_loss(const SigmoidLoss& a) {
  const auto kernel = table(a.targets).loss[static_cast<int>(a.targets.storage)];
  for_chunks(a.targets, [&](std::int64_t first, std::int64_t last) { kernel(a, first, last); });
}

void sigmoid_loss_gradient(const SigmoidLossGradient& a) {
  const auto kernel = table(a.targets).gradient[static_cast<int>(a.targets.storage)];
  for_chunks(a.targets, [&](std::int64_t first, std::int64_t last) { kernel(a, first, last); });
}

}  // namespace hpcgnn::kernels
