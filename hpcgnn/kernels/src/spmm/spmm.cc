#include "spmm/spmm.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

#include "balance.h"
#include "coded/blocks.h"
#include "pages.h"
#include "parallel.h"
#include "rows/rows.h"
#include "simd/isa.h"
#include "spmm/cache.h"
#include "spmm/problem.h"

namespace hpcgnn::kernels {
namespace {

constexpr std::int64_t kChunkCost = 32768;
constexpr std::int64_t kChunksPerThread = 8;
// Writing a row of the result costs about as much as reading this many non-zeros.
constexpr std::int64_t kRowCost = 3;
// Results this many times larger than the cache are evicted before they are read: measured with a
// reader after the product, streaming stores pay from here on.
constexpr std::int64_t kStreamCaches = 4;
// From this many reads of each row of x, copying x times the factors of its rows takes less time
// than reading the factors beside it.
constexpr std::int64_t kReadsToScale = 16;
// Non-zeros whose indices share a cache line.
constexpr std::int64_t kLineIndices = 16;
// In shorter rows, row ends, which branch predictors miss, cost more.
constexpr std::int64_t kLongRow = 24;

/// A row with more non-zeros than this is cut into segments of this length: long enough to hide the
/// cost of a partial sum, short enough to balance many threads, and fixed, so that the order of
/// summation does not depend on the number of threads.
constexpr std::int64_t kSegment = 8192;

/// The long rows of a product as two products: segments times x give partial sums, and the second
/// adds these up by row.
class LongRows {
 public:
  /// Collect the long ones among the rows [first_row, last_row).
  /// @throws std::invalid_argument when a row has a negative length or ends behind the non-zeros.
  void collect(const SpmmArguments& arguments, std::int64_t first_row, std::int64_t last_row);

  bool empty() const { return rows_.empty(); }
  std::int64_t num_rows() const { return static_cast<std::int64_t>(rows_.size()); }
  std::int64_t num_segments() const { return static_cast<std::int64_t>(begin_.size()); }

  /// The product that computes the partial sums, `partial` having rows of problem.width elements.
  SpmmProblem segments(const SpmmProblem& problem, void* partial) const;

  /// The product that adds the partial sums up into the rows of problem.out.
  SpmmProblem sums(const SpmmProblem& problem, const void* partial) const;

 private:
  void add(std::int64_t out_row, std::int64_t begin, std::int64_t end);

  std::vector<std::int64_t> begin_, end_;       // non-zeros of each segment
  std::vector<std::int32_t> identity_;          // 0, 1, ...: indices of the second product
  std::vector<std::int64_t> first_segment_{0};  // of each row, and one past the last
  std::vector<std::int64_t> counts_;            // non-zeros of each row
  std::vector<std::int32_t> rows_;              // row of the result
};

void LongRows::collect(const SpmmArguments& a, std::int64_t first_row, std::int64_t last_row) {
  for (std::int64_t i = first_row; i < last_row; ++i) {
    const std::int64_t length = a.indptr[i + 1] - a.indptr[i];
    // The last offset is the number of non-zeros, so a larger one is followed by a decrease.
    if (length < 0 || a.indptr[i + 1] > a.num_nonzeros)
      throw std::invalid_argument("indptr must not decrease");
    if (length > kSegment) add(a.rows ? a.rows[i] : i, a.indptr[i], a.indptr[i + 1]);
  }
}

void LongRows::add(std::int64_t out_row, std::int64_t begin, std::int64_t end) {
  for (std::int64_t e = begin; e < end; e += kSegment) {
    identity_.push_back(static_cast<std::int32_t>(begin_.size()));
    begin_.push_back(e);
    end_.push_back(std::min(e + kSegment, end));
  }
  first_segment_.push_back(num_segments());
  counts_.push_back(end - begin);
  rows_.push_back(static_cast<std::int32_t>(out_row));
}

SpmmProblem LongRows::segments(const SpmmProblem& problem, void* partial) const {
  SpmmProblem result = problem;
  result.begin = begin_.data();
  result.end = end_.data();
  result.out = partial;
  result.out_pitch = problem.width;
  result.rows = nullptr;
  result.row_factors = nullptr;
  result.accumulate = result.mean = result.stream = result.long_rows = false;
  return result;
}

SpmmProblem LongRows::sums(const SpmmProblem& problem, const void* partial) const {
  SpmmProblem result = problem;
  result.begin = first_segment_.data();
  result.end = first_segment_.data() + 1;
  result.indices = identity_.data();
  result.num_indices = num_segments();
  result.values = nullptr;
  result.by_column = false;
  result.x = partial;
  result.x_pitch = problem.width;
  result.rows = rows_.data();
  result.counts = counts_.data();
  result.longest_row = std::numeric_limits<std::uint64_t>::max();
  result.stream = result.long_rows = false;
  return result;
}

SpmmKernel kernel_of(Isa isa, Storage x, Storage out) {
  return table_of<SpmmTable>(isa).kernel[static_cast<int>(x)][static_cast<int>(out)];
}

bool streams(const SpmmArguments& a) {
  const std::int64_t pitch = a.width * storage_bytes(a.out_storage);
  const bool aligned = pitch % 64 == 0 && reinterpret_cast<std::uintptr_t>(a.out) % 64 == 0;
  return aligned && !a.accumulate && a.num_rows * pitch > kStreamCaches * private_cache_bytes();
}

/// Non-zeros between prefetches of the pattern: a line; if most rows are shorter, all of a row,
/// which spares them a branch.
std::int64_t pattern_step(const SpmmArguments& a) {
  return a.num_nonzeros < kLineIndices * a.num_rows ? a.num_nonzeros : kLineIndices;
}

/// Whether two rows at a time are faster: if x, which is then not prefetched, is in the cache. A
/// table as large as the cache shares it with the pattern and the results.
bool has_long_rows(const SpmmArguments& a) {
  const std::int64_t x_bytes = a.num_x_rows * a.width * storage_bytes(a.x_storage);
  return a.num_nonzeros >= kLongRow * a.num_rows && 2 * x_bytes <= private_cache_bytes();
}

/// A product cut into tasks, for any number of column tiles of the same pattern.
class Schedule {
 public:
  explicit Schedule(const SpmmArguments& a)
      : a_(a),
        kernel_(kernel_of(a.isa, a.x_storage, a.out_storage)),
        sum_storage_(accumulator_of(a.x_storage)) {
    const std::int64_t cost = a.num_nonzeros + kRowCost * a.num_rows;
    threads_ = cost * a.width < kSerialWork ? 1 : resolve_threads(a.num_threads);
    const std::int64_t wanted = threads_ > 1 ? threads_ * kChunksPerThread : 1;
    bounds_ = balanced_rows(a.indptr, a.num_rows, std::max(cost / kChunkCost, wanted), kRowCost);
    skipped_.resize(bounds_.size());
  }

  int threads() const { return threads_; }

  void run(const SpmmProblem& problem) {
    parallel_tasks(threads_, static_cast<std::int64_t>(bounds_.size()) - 1, [&](std::int64_t task) {
      const std::size_t chunk = static_cast<std::size_t>(task);
      skipped_[chunk] = run_rows(kernel_, problem, bounds_[chunk], bounds_[chunk + 1]);
    });
    if (!collected_) {
      for (std::size_t chunk = 0; chunk + 1 < bounds_.size(); ++chunk)
        if (skipped_[chunk] != 0) long_rows_.collect(a_, bounds_[chunk], bounds_[chunk + 1]);
      collected_ = true;
    }
    if (!long_rows_.empty()) run_long_rows(problem);
  }

 private:
  /// Run a kernel on rows of the pattern, as it is in memory or decoded.
  bool run_rows(SpmmKernel kernel, const SpmmProblem& problem, std::int64_t first_row,
                std::int64_t last_row) const {
    if (a_.coded == nullptr) return kernel(problem, first_row, last_row);
    bool skipped = false;
    for_blocks(*a_.coded, a_.indptr, a_.num_rows, {problem.begin, problem.end, first_row, last_row},
               a_.isa,
               [&](const std::int32_t* indices, std::int64_t known, std::int64_t first,
                   std::int64_t last) {
                 SpmmProblem block = problem;
                 block.indices = indices;
                 block.num_indices = known;
                 skipped |= kernel(block, first, last);
               });
    return skipped;
  }

  void run_long_rows(const SpmmProblem& problem) const {
    const std::int64_t num_segments = long_rows_.num_segments();
    const std::unique_ptr<std::byte[]> partial(new std::byte[static_cast<std::size_t>(
        num_segments * problem.width * storage_bytes(sum_storage_))]);
    const SpmmProblem segments = long_rows_.segments(problem, partial.get());
    const SpmmKernel segment_kernel = kernel_of(a_.isa, a_.x_storage, sum_storage_);
    parallel_tasks(threads_, num_segments,
                   [&](std::int64_t task) { run_rows(segment_kernel, segments, task, task + 1); });
    const SpmmProblem sums = long_rows_.sums(problem, partial.get());
    kernel_of(a_.isa, sum_storage_, a_.out_storage)(sums, 0, long_rows_.num_rows());
  }

  const SpmmArguments& a_;
  SpmmKernel kernel_;
  Storage sum_storage_;
  int threads_;
  std::vector<std::int64_t> bounds_;
  std::vector<std::uint8_t> skipped_;
  LongRows long_rows_;
  bool collected_ = false;
};

/// Whether column factors are multiplied into a copy of x.
bool scales(const SpmmArguments& a) {
  return a.column_factors != nullptr && a.x_storage == accumulator_of(a.x_storage) &&
         a.num_nonzeros >= kReadsToScale * a.num_x_rows;
}

void run_tiles(const SpmmArguments& a, Schedule& schedule, SpmmProblem problem, Tiling tiling) {
  const bool scaled = scales(a);
  tiling.packed |= scaled;
  if (scaled) problem.values = nullptr;
  const std::int64_t x_bytes = storage_bytes(a.x_storage);
  const std::int64_t out_bytes = storage_bytes(a.out_storage);
  const std::int64_t columns = tiling.bytes / x_bytes;
  const Pages packed = tiling.packed
                           ? allocate_pages(static_cast<std::size_t>(a.num_x_rows * tiling.bytes))
                           : Pages();
  for (std::int64_t column = 0; column < a.width; column += columns) {
    problem.width = std::min(columns, a.width - column);
    problem.x = static_cast<const std::byte*>(a.x) + column * x_bytes;
    problem.out = static_cast<std::byte*>(a.out) + column * out_bytes;
    if (tiling.packed) {
      const std::int64_t pitch = a.width * x_bytes, copied = problem.width * x_bytes;
      if (scaled)
        scale_columns(problem.x, a.column_factors, a.x_storage, a.num_x_rows, pitch, copied,
                      packed.get(), schedule.threads());
      else
        copy_columns(problem.x, a.num_x_rows, pitch, copied, packed.get(), schedule.threads());
      problem.x = packed.get();
      problem.x_pitch = problem.width;
    }
    schedule.run(problem);
  }
}

}  // namespace

bool spmm_supports(Storage x, Storage out) {
  return SpmmTable::portable.kernel[static_cast<int>(x)][static_cast<int>(out)] != nullptr;
}

void spmm(const SpmmArguments& a) {
  if (a.num_rows == 0 || a.width == 0) return;
  const SpmmProblem problem{.begin = a.indptr,
                            .end = a.indptr + 1,
                            .indices = a.indices,
                            .values = a.column_factors ? a.column_factors : a.values,
                            .row_factors = a.row_factors,
                            .x = a.x,
                            .out = a.out,
                            .rows = a.rows,
                            .counts = nullptr,
                            .x_pitch = a.width,
                            .out_pitch = a.width,
                            .width = a.width,
                            .longest_row = kSegment,
                            .num_indices = a.num_nonzeros,
                            .pattern_step = pattern_step(a),
                            .long_rows = has_long_rows(a),
                            .by_column = a.column_factors != nullptr,
                            .accumulate = a.accumulate,
                            .mean = a.mean,
                            .stream = streams(a)};
  Schedule schedule(a);
  const Tiling tiling = choose_tiling(a.num_x_rows, a.width * storage_bytes(a.x_storage),
                                      a.num_nonzeros, private_cache_bytes(), shared_cache_bytes());
  run_tiles(a, schedule, problem, tiling);
}

}  // namespace hpcgnn::kernels
