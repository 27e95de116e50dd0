#include "pattern.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace hpcgnn::kernels {

void check_indptr(const std::int64_t* indptr, std::int64_t num_rows, std::int64_t num_nonzeros) {
  if (indptr[0] != 0) throw std::invalid_argument("indptr must start at 0");
  bool decreases = false;
  for (std::int64_t i = 0; i < num_rows; ++i) decreases |= indptr[i + 1] < indptr[i];
  if (decreases) throw std::invalid_argument("indptr must not decrease");
  if (indptr[num_rows] != num_nonzeros)
    throw std::invalid_argument("indptr ends at " + std::to_string(indptr[num_rows]) +
                                " but there are " + std::to_string(num_nonzeros) + " indices");
}

void check_range(const char* name, const std::int32_t* indices, std::int64_t count,
                 std::int64_t limit) {
  if (count == 0) return;
  std::int32_t low = indices[0], high = indices[0];
  for (std::int64_t i = 0; i < count; ++i) {
    low = std::min(low, indices[i]);
    high = std::max(high, indices[i]);
  }
  if (low < 0 || high >= limit)
    throw std::invalid_argument(std::string(name) + " holds " +
                                std::to_string(low < 0 ? low : high) + ", outside [0, " +
                                std::to_string(limit) + ")");
}

void check_sorted(const std::int64_t* indptr, const std::int32_t* indices, std::int64_t num_rows) {
  for (std::int64_t i = 0; i < num_rows; ++i)
    for (std::int64_t e = indptr[i] + 1; e < indptr[i + 1]; ++e)
      if (indices[e - 1] >= indices[e])
        throw std::invalid_argument("row " + std::to_string(i) +
                                    " has columns that are repeated or not in ascending order");
}

}  // namespace hpcgnn::kernels
