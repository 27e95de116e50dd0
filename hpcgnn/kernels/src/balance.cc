#include "balance.h"

#include <algorithm>

namespace hpcgnn::kernels {

std::vector<std::int64_t> balanced_rows(const std::int64_t* indptr, std::int64_t num_rows,
                                        std::int64_t num_chunks, std::int64_t row_cost) {
  std::vector<std::int64_t> bounds(static_cast<std::size_t>(num_chunks) + 1, num_rows);
  bounds[0] = 0;
  const std::int64_t total = indptr[num_rows] - indptr[0] + row_cost * num_rows;
  for (std::int64_t chunk = 1; chunk < num_chunks; ++chunk) {
    const std::int64_t target =
        total / num_chunks * chunk + total % num_chunks * chunk / num_chunks;
    std::int64_t low = bounds[static_cast<std::size_t>(chunk) - 1], high = num_rows;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (indptr[middle] - indptr[0] + row_cost * middle < target)
        low = middle + 1;
      else
        high = middle;
    }
    bounds[static_cast<std::size_t>(chunk)] = low;
  }
  return bounds;
}

std::vector<std::int64_t> balanced_targets(const std::int32_t* targets, std::int64_t count,
                                           std::int64_t num_targets, int num_shares) {
  constexpr std::int64_t kSamplesPerShare = 256;
  const std::int64_t wanted = kSamplesPerShare * num_shares;
  const std::int64_t stride = std::max<std::int64_t>(1, count / wanted);
  std::vector<std::int32_t> sample;
  sample.reserve(static_cast<std::size_t>(count / stride) + 1);
  for (std::int64_t i = 0; i < count; i += stride) sample.push_back(targets[i]);
  std::sort(sample.begin(), sample.end());

  std::vector<std::int64_t> bounds(static_cast<std::size_t>(num_shares) + 1, num_targets);
  bounds[0] = 0;
  for (std::size_t share = 1; share < static_cast<std::size_t>(num_shares); ++share)
    if (!sample.empty())
      bounds[share] = sample[sample.size() * share / static_cast<std::size_t>(num_shares)];
  return bounds;
}

}  // namespace hpcgnn::kernels
