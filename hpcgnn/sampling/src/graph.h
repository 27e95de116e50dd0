/// The graph that samplers walk: a CSR pattern in the caller's memory, possibly a mapped file.
#pragma once

#include <cstdint>

namespace hpcgnn::sampling {

/// @pre `indptr` ascends from 0 over num_nodes + 1 offsets, indices are nodes.
struct Graph {
  const std::int64_t* indptr;
  const std::int32_t* indices;
  std::int64_t num_nodes;
  std::int64_t num_roots;  ///< walks start at the nodes below this

  std::int64_t degree(std::int64_t node) const { return indptr[node + 1] - indptr[node]; }
  std::int64_t num_entries() const { return indptr[num_nodes]; }
};

/// Prefetch the cache line at `address`, which later steps will read.
inline void prefetch(const void* address) { __builtin_prefetch(address); }

}  // namespace hpcgnn::sampling
