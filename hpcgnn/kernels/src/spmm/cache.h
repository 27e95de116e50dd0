/// Sizes of the machine's caches, and the column tiles that follow from them.
#pragma once

#include <cstdint>

namespace hpcgnn::kernels {

/// Bytes of one core's private cache (level 2): from sysfs, else sysconf, else 1 MiB. Read once.
std::int64_t private_cache_bytes();

/// Bytes of the cache of level 3, which cores share: from sysfs, else 0. Read once.
std::int64_t shared_cache_bytes();

/// How the columns of a product are cut: into tiles of `bytes` of each row of x, one after the
/// other, and whether each tile is first copied into a compact array.
struct Tiling {
  std::int64_t bytes;
  bool packed;
};

/// Feature partitioning (graph-sampling paper, Algorithm 7): the graph is not cut, the columns are.
///
/// With Q tiles whose share of x fits the private cache, num_x_rows * row_bytes for x and
/// 8 num_nonzeros Q for the pattern and its values move between memory and cache. The first term is
/// the least that any schedule can move, so this is within a factor of two of the optimum while
/// 8 num_nonzeros Q <= num_x_rows * row_bytes; so is one tile, if x fits the cache and the average
/// degree is at most row_bytes / 8.
///
/// - If x fits the cache, or its rows are read too few times to repay more passes: one tile.
/// - If at least two lines of each row fit: the fewest such tiles, packed, since rows that are a
///   power of two apart would share a few sets of the cache.
/// - If rows have at most four lines and the shared cache holds x: one tile.
/// - Otherwise: tiles of two lines, also packed. The cache then holds as many as it can of the rows
///   that are read most, and the neighbouring lines that the hardware fetches with them belong to
///   the same rows.
Tiling choose_tiling(std::int64_t num_x_rows, std::int64_t row_bytes, std::int64_t num_nonzeros,
                     std::int64_t private_bytes, std::int64_t shared_bytes);

}  // namespace hpcgnn::kernels
