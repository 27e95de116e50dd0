/// Rows with too many non-zeros for one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "spmm.h"
#include "spmm_problem.h"

namespace hpcgnn::kernels {

/// A row with more non-zeros than this is cut into segments of this length. Long enough to hide the
/// partial sum it costs, short enough to balance many threads; fixed, so that the order of
/// summation does not depend on their number.
inline constexpr std::int64_t kSegment = 8192;

/// The long rows of a product as two products: segments times x gives partial sums, which are added
/// up per row.
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

  /// The product that adds them up into the rows of problem.out.
  SpmmProblem sums(const SpmmProblem& problem, const void* partial) const;

 private:
  void add(std::int64_t out_row, std::int64_t begin, std::int64_t end);

  std::vector<std::int64_t> begin_, end_;       // non-zeros of each segment
  std::vector<std::int32_t> identity_;          // 0, 1, ...: indices of the second product
  std::vector<std::int64_t> first_segment_{0};  // of each row, and one past the last
  std::vector<std::int64_t> counts_;            // non-zeros of each row
  std::vector<std::int32_t> rows_;              // row of the result
};

}  // namespace hpcgnn::kernels
