#include "spmm.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "balance.h"
#include "parallel.h"
#include "spmm_problem.h"

namespace hpcgnn::kernels {
namespace {

// A segment must be long enough to hide its partial sum and short enough to balance many threads.
constexpr std::int64_t kSegment = 8192;
constexpr std::int64_t kChunkCost = 32768;
// Writing a row of the result costs about as much as reading this many non-zeros.
constexpr std::int64_t kRowCost = 3;
// Below this many multiply-adds waking threads costs more than it saves.
constexpr std::int64_t kSerialWork = 1 << 16;
constexpr std::int64_t kPrefetchLines = 32;

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

/// Rows longer than a segment, cut into segments.
struct LongRows {
  std::vector<std::int64_t> begin, end;     ///< non-zeros of each segment
  std::vector<std::int64_t> first_segment;  ///< per long row, and one past the last
  std::vector<std::int32_t> out_row;        ///< per long row
  std::vector<std::int64_t> counts;         ///< non-zeros of each long row
  std::vector<std::int32_t> identity;       ///< segment numbers, the indices of the second product

  explicit LongRows(const SpmmArguments& a) {
    first_segment.push_back(0);
    for (std::int64_t i = 0; i < a.num_rows; ++i) {
      const std::int64_t length = a.indptr[i + 1] - a.indptr[i];
      if (length <= kSegment) continue;
      for (std::int64_t e = a.indptr[i]; e < a.indptr[i + 1]; e += kSegment) {
        begin.push_back(e);
        end.push_back(std::min(e + kSegment, a.indptr[i + 1]));
        identity.push_back(static_cast<std::int32_t>(identity.size()));
      }
      first_segment.push_back(static_cast<std::int64_t>(begin.size()));
      out_row.push_back(a.rows ? a.rows[i] : static_cast<std::int32_t>(i));
      counts.push_back(length);
    }
  }
  std::int64_t num_segments() const { return static_cast<std::int64_t>(begin.size()); }
  std::int64_t num_rows() const { return static_cast<std::int64_t>(out_row.size()); }
};

}  // namespace

bool spmm_supports(Storage x, Storage out) {
  return kSpmmPortable.kernel[static_cast<int>(x)][static_cast<int>(out)] != nullptr;
}

void spmm(const SpmmArguments& a) {
  if (a.num_rows == 0 || a.width == 0) return;
  const std::int64_t cost = a.num_nonzeros + kRowCost * a.num_rows;
  const int threads = cost * a.width < kSerialWork ? 1 : resolve_threads(a.num_threads);
  const LongRows long_rows(a);

  std::vector<std::int64_t> counts;
  if (a.mean) {
    counts.resize(static_cast<std::size_t>(a.num_rows));
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = a.indptr[i + 1] - a.indptr[i];
  }
  const SpmmProblem rows{
      a.indptr,    a.indptr + 1, a.indices,      a.values,
      a.x,         a.out,        a.rows,         a.mean ? counts.data() : nullptr,
      a.width,     kSegment,     a.num_nonzeros, kPrefetchLines,
      a.accumulate};
  const SpmmKernel row_kernel = kernel_of(a.isa, a.x_storage, a.out_storage);
  const std::int64_t num_chunks =
      std::max<std::int64_t>({1, cost / kChunkCost, threads > 1 ? 4 * threads : 1});
  const std::vector<std::int64_t> bounds =
      balanced_rows(a.indptr, a.num_rows, num_chunks, kRowCost);

  const Storage partial_storage = accumulator_of(a.x_storage);
  std::vector<double> partial(static_cast<std::size_t>(
      (long_rows.num_segments() * a.width * storage_bytes(partial_storage) + 7) / 8));
  SpmmProblem segments = rows;
  segments.begin = long_rows.begin.data();
  segments.end = long_rows.end.data();
  segments.out = partial.data();
  segments.rows = nullptr;
  segments.counts = nullptr;
  segments.accumulate = false;
  const SpmmKernel segment_kernel = kernel_of(a.isa, a.x_storage, partial_storage);

  const std::int64_t num_segments = long_rows.num_segments();
  parallel_tasks(threads, num_segments + num_chunks, [&](std::int64_t task) {
    if (task < num_segments) {
      segment_kernel(segments, task, task + 1, 0, a.width);
    } else {
      const std::size_t chunk = static_cast<std::size_t>(task - num_segments);
      row_kernel(rows, bounds[chunk], bounds[chunk + 1], 0, a.width);
    }
  });

  SpmmProblem sums = rows;
  sums.begin = long_rows.first_segment.data();
  sums.end = long_rows.first_segment.data() + 1;
  sums.indices = long_rows.identity.data();
  sums.values = nullptr;
  sums.x = partial.data();
  sums.rows = long_rows.out_row.data();
  sums.counts = a.mean ? long_rows.counts.data() : nullptr;
  sums.longest_row = std::numeric_limits<std::int64_t>::max();
  sums.num_indices = num_segments;
  kernel_of(a.isa, partial_storage, a.out_storage)(sums, 0, long_rows.num_rows(), 0, a.width);
}

}  // namespace hpcgnn::kernels
