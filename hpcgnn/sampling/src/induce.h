/// The subgraph that a set of nodes induces, and the layer-wise fan-out.
#pragma once

#include <cstdint>
#include <vector>

#include "draws.h"
#include "graph.h"

namespace hpcgnn::sampling {

/// A CSR pattern whose columns are places in a list of nodes.
struct SampledPattern {
  std::vector<std::int64_t> indptr;
  std::vector<std::int32_t> indices;  ///< ascending in a row where the graph's are
  std::vector<std::int64_t> entries;  ///< number of each entry in the graph
};

/// The entries among `count` ascending nodes. O(entries of their rows).
SampledPattern induce(const Graph& graph, const std::int32_t* nodes, std::int64_t count);

/// What one layer of a fan-out reads.
struct FanOut {
  std::vector<std::int32_t> inputs;  ///< ascending: the targets and the neighbours that were drawn
  SampledPattern pattern;            ///< a row for every target, columns are places in `inputs`
};

/// Draw `fan_out` neighbours without repeats, or all where there are no more, for each of `count`
/// ascending targets. What a target draws does not depend on the other targets.
FanOut sample_fan_out(const Graph& graph, const std::int32_t* targets, std::int64_t count,
                      std::int64_t fan_out, Draws draws);

}  // namespace hpcgnn::sampling
