/// Sizes of the machine's caches, and the column tiles that follow from them.
#pragma once

#include <cstdint>

namespace hpcgnn::kernels {

/// Bytes of one core's private cache (level 2): from sysfs, else sysconf, else 1 MiB. Asked once.
std::int64_t private_cache_bytes();

/// Bytes of a row of x that one pass over the non-zeros should cover.
///
/// Feature partitioning (graph-sampling paper, Algorithm 7): the columns are cut into the fewest
/// tiles of whole cache lines whose share of x fits the private cache, and each tile is packed and
/// multiplied on its own; the graph is not cut. Q tiles move num_x_rows * row_bytes for x and 8
/// num_nonzeros Q for the pattern and its values. Without tiles the first term is the least that
/// any schedule can move, so this is within a factor of two of the optimum while
/// 8 num_nonzeros Q <= num_x_rows * row_bytes; one tile is, when x fits the cache and the average
/// degree is at most row_bytes / 8.
///
/// Returns `row_bytes` (one tile, nothing packed) also where tiles cannot pay: even a single line a
/// row does not fit, or each row of x is read too few times to repay its packing.
std::int64_t tile_bytes(std::int64_t num_x_rows, std::int64_t row_bytes, std::int64_t num_nonzeros,
                        std::int64_t cache_bytes);

}  // namespace hpcgnn::kernels
