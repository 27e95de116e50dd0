/// Checks of CSR patterns.
#pragma once

#include <cstdint>

namespace hpcgnn::kernels {

/// @throws std::invalid_argument unless `indptr` starts at 0, never decreases and ends at
/// `num_nonzeros`. O(num_rows).
void check_indptr(const std::int64_t* indptr, std::int64_t num_rows, std::int64_t num_nonzeros);

/// @throws std::invalid_argument naming `name` unless all `count` indices are in [0, limit).
void check_range(const char* name, const std::int32_t* indices, std::int64_t count,
                 std::int64_t limit);

/// @throws std::invalid_argument naming a row unless its columns ascend without repeats.
/// @pre check_indptr holds. O(num_nonzeros).
void check_sorted(const std::int64_t* indptr, const std::int32_t* indices, std::int64_t num_rows);

}  // namespace hpcgnn::kernels
