/// The layer-wise draw of neighbours.
#pragma once

#include <cstdint>
#include <vector>

#include "draws.h"
#include "graph.h"
#include "induce.h"

namespace hpcgnn::sampling {

/// The nodes that one layer of a fan-out reads, and its edges.
struct FanOut {
  std::vector<std::int32_t> inputs;  ///< ascending: the targets and the neighbours that were drawn
  SampledPattern pattern;            ///< a row for every target; columns are positions in `inputs`
};

/// Draw `fan_out` neighbours without repeats, or all if there are no more, for each of `count`
/// ascending targets. A target's draw does not depend on the other targets.
FanOut sample_fan_out(const Graph& graph, const std::int32_t* targets, std::int64_t count,
                      std::int64_t fan_out, Draws draws);

}  // namespace hpcgnn::sampling
