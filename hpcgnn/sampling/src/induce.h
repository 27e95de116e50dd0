/// The subgraph that a set of nodes induces.
#pragma once

#include <cstdint>
#include <vector>

#include "graph.h"

namespace hpcgnn::sampling {

/// A CSR pattern whose columns are positions in a list of nodes.
struct SampledPattern {
  std::vector<std::int64_t> indptr;
  std::vector<std::int32_t> indices;  ///< ascending in a row if the graph's are
  std::vector<std::int64_t> entries;  ///< number of each entry in the graph
};

/// The entries among `count` ascending nodes. O(entries of their rows).
SampledPattern induce(const Graph& graph, const std::int32_t* nodes, std::int64_t count);

}  // namespace hpcgnn::sampling
