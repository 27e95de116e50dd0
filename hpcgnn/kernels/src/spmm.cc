#include "spmm.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <vector>

#include "balance.h"
#include "cache.h"
#include "long_rows.h"
#include "parallel.h"
#include "rows.h"
#include "spmm_problem.h"

namespace hpcgnn::kernels {
namespace {

constexpr std::int64_t kChunkCost = 32768;
constexpr std::int64_t kChunksPerThread = 8;
// Writing a row of the result costs about as much as reading this many non-zeros.
constexpr std::int64_t kRowCost = 3;
// Below this many multiply-adds waking threads costs more than it saves.
constexpr std::int64_t kSerialWork = 1 << 16;
// Results this many times larger than the cache are gone before anyone reads them: measured with a
// reader after the product, streaming them pays from here on.
constexpr std::int64_t kStreamCaches = 4;

const SpmmTable& table_of(Isa isa) {
#ifdef HPCGNN_X86
  if (isa == Isa::kAvx512) return kSpmmAvx512;
  if (isa == Isa::kAvx2) return kSpmmAvx2;
#endif
  static_cast<void>(isa);
  return kSpmmPortable;
}

SpmmKernel kernel_of(Isa isa, Storage x, Storage out) {
  return table_of(isa).kernel[static_cast<int>(x)][static_cast<int>(out)];
}

bool streams(const SpmmArguments& a) {
  const std::int64_t pitch = a.width * storage_bytes(a.out_storage);
  const bool aligned = pitch % 64 == 0 && reinterpret_cast<std::uintptr_t>(a.out) % 64 == 0;
  return aligned && !a.accumulate && a.num_rows * pitch > kStreamCaches * private_cache_bytes();
}

/// One product cut into tasks, for any number of column tiles of the same pattern.
class Schedule {
 public:
  explicit Schedule(const SpmmArguments& a)
      : a_(a), cost_(a.num_nonzeros + kRowCost * a.num_rows) {
    threads_ = cost_ * a.width < kSerialWork ? 1 : resolve_threads(a.num_threads);
    const std::int64_t wanted = threads_ > 1 ? threads_ * kChunksPerThread : 1;
    const std::int64_t chunks = std::max(cost_ / kChunkCost, wanted);
    bounds_ = balanced_rows(a.indptr, a.num_rows, chunks, kRowCost);
    find_long_rows();
  }

  int threads() const { return threads_; }

  void run(const SpmmProblem& problem) const {
    const SpmmKernel kernel = kernel_of(a_.isa, a_.x_storage, a_.out_storage);
    const Storage sum_storage = accumulator_of(a_.x_storage);
    const SpmmKernel segment_kernel = kernel_of(a_.isa, a_.x_storage, sum_storage);
    const std::int64_t num_segments = long_rows_.num_segments();
    const std::unique_ptr<std::byte[]> partial(new std::byte[static_cast<std::size_t>(
        num_segments * problem.width * storage_bytes(sum_storage))]);
    const SpmmProblem segments = long_rows_.segments(problem, partial.get());
    const std::int64_t num_chunks = static_cast<std::int64_t>(bounds_.size()) - 1;
    parallel_tasks(threads_, num_segments + num_chunks, [&](std::int64_t task) {
      if (task < num_segments) {
        segment_kernel(segments, task, task + 1);
      } else {
        const std::size_t chunk = static_cast<std::size_t>(task - num_segments);
        kernel(problem, bounds_[chunk], bounds_[chunk + 1]);
      }
    });
    const SpmmProblem sums = long_rows_.sums(problem, partial.get());
    kernel_of(a_.isa, sum_storage, a_.out_storage)(sums, 0, long_rows_.num_rows());
  }

 private:
  void find_long_rows() {
    std::vector<std::uint8_t> has_long(bounds_.size());
    std::atomic<bool> decreases{false};
    parallel_tasks(threads_, static_cast<std::int64_t>(bounds_.size()) - 1, [&](std::int64_t task) {
      const std::size_t chunk = static_cast<std::size_t>(task);
      std::int64_t shortest = 0, longest = 0;
      for (std::int64_t i = bounds_[chunk]; i < bounds_[chunk + 1]; ++i) {
        const std::int64_t length = a_.indptr[i + 1] - a_.indptr[i];
        shortest = std::min(shortest, length);
        longest = std::max(longest, length);
      }
      if (shortest < 0) decreases = true;
      has_long[chunk] = longest > kSegment;
    });
    if (decreases) throw std::invalid_argument("indptr must not decrease");
    for (std::size_t chunk = 0; chunk + 1 < bounds_.size(); ++chunk) {
      if (has_long[chunk] == 0) continue;
      for (std::int64_t i = bounds_[chunk]; i < bounds_[chunk + 1]; ++i)
        if (a_.indptr[i + 1] - a_.indptr[i] > kSegment)
          long_rows_.add(a_.rows ? a_.rows[i] : i, a_.indptr[i], a_.indptr[i + 1]);
    }
  }

  const SpmmArguments& a_;
  std::int64_t cost_;
  int threads_;
  std::vector<std::int64_t> bounds_;
  LongRows long_rows_;
};

void run_tiles(const SpmmArguments& a, const Schedule& schedule, SpmmProblem problem,
               std::int64_t bytes) {
  const std::int64_t x_bytes = storage_bytes(a.x_storage);
  const std::int64_t out_bytes = storage_bytes(a.out_storage);
  const std::unique_ptr<std::byte[]> packed(
      new std::byte[static_cast<std::size_t>(a.num_x_rows * bytes + 64)]);
  void* const aligned =
      packed.get() + (64 - reinterpret_cast<std::uintptr_t>(packed.get()) % 64) % 64;
  for (std::int64_t column = 0; column < a.width; column += bytes / x_bytes) {
    problem.width = problem.x_pitch = std::min(bytes / x_bytes, a.width - column);
    copy_columns(static_cast<const std::byte*>(a.x) + column * x_bytes, a.num_x_rows,
                 a.width * x_bytes, problem.width * x_bytes, aligned, schedule.threads());
    problem.x = aligned;
    problem.out = static_cast<std::byte*>(a.out) + column * out_bytes;
    schedule.run(problem);
  }
}

}  // namespace

bool spmm_supports(Storage x, Storage out) {
  return kSpmmPortable.kernel[static_cast<int>(x)][static_cast<int>(out)] != nullptr;
}

void spmm(const SpmmArguments& a) {
  if (a.num_rows == 0 || a.width == 0) return;
  const SpmmProblem problem{.begin = a.indptr,
                            .end = a.indptr + 1,
                            .indices = a.indices,
                            .values = a.values,
                            .x = a.x,
                            .out = a.out,
                            .rows = a.rows,
                            .counts = nullptr,
                            .x_pitch = a.width,
                            .out_pitch = a.width,
                            .width = a.width,
                            .longest_row = kSegment,
                            .num_indices = a.num_nonzeros,
                            .accumulate = a.accumulate,
                            .mean = a.mean,
                            .stream = streams(a)};
  const Schedule schedule(a);
  const std::int64_t row_bytes = a.width * storage_bytes(a.x_storage);
  const std::int64_t bytes =
      tile_bytes(a.num_x_rows, row_bytes, a.num_nonzeros, private_cache_bytes());
  if (bytes < row_bytes)
    run_tiles(a, schedule, problem, bytes);
  else
    schedule.run(problem);
}

}  // namespace hpcgnn::kernels
