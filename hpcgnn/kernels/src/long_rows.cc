#include "long_rows.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace hpcgnn::kernels {

void LongRows::collect(const SpmmArguments& a, std::int64_t first_row, std::int64_t last_row) {
  for (std::int64_t i = first_row; i < last_row; ++i) {
    const std::int64_t length = a.indptr[i + 1] - a.indptr[i];
    // Offsets end at the number of non-zeros: one beyond it is followed by a decrease.
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
  result.accumulate = result.mean = result.stream = false;
  return result;
}

SpmmProblem LongRows::sums(const SpmmProblem& problem, const void* partial) const {
  SpmmProblem result = problem;
  result.begin = first_segment_.data();
  result.end = first_segment_.data() + 1;
  result.indices = identity_.data();
  result.num_indices = num_segments();
  result.values = nullptr;
  result.x = partial;
  result.x_pitch = problem.width;
  result.rows = rows_.data();
  result.counts = counts_.data();
  result.longest_row = std::numeric_limits<std::uint64_t>::max();
  result.stream = false;
  return result;
}

}  // namespace hpcgnn::kernels
