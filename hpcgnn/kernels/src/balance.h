/// Cutting work into shares of equal cost.
#pragma once

#include <cstdint>
#include <vector>

namespace hpcgnn::kernels {

/// Boundaries of `num_chunks` consecutive row ranges of about equal cost, first 0 and last
/// `num_rows`. A row costs its non-zeros plus `row_cost`; ranges may be empty.
/// @pre indptr holds num_rows + 1 non-decreasing offsets.
std::vector<std::int64_t> balanced_rows(const std::int64_t* indptr, std::int64_t num_rows,
                                        std::int64_t num_chunks, std::int64_t row_cost);

/// Boundaries of `num_shares` consecutive ranges of [0, num_targets) that about equally many of the
/// `count` targets fall into, estimated from a fixed sample, so equal input gives equal boundaries.
std::vector<std::int64_t> balanced_targets(const std::int32_t* targets, std::int64_t count,
                                           std::int64_t num_targets, int num_shares);

}  // namespace hpcgnn::kernels
