/// Maximum matchings of a block's graph, and the minimum vertex covers that they give.
#pragma once

#include <cstdint>

#include "cover_graph.h"

namespace hpcgnn::kernels {

/// Enlarge the matching `graph.mate` to a maximum one, by Hopcroft and Karp, and mark the columns
/// that alternating paths from free columns reach in `graph.level` (>= 0).
void match_fully(CoverGraph& graph);

/// Mark in `graph.in_cover` the minimum cover that most columns are in, by König's theorem.
/// @pre match_fully has run on the graph.
void cover_from_matching(CoverGraph& graph);

}  // namespace hpcgnn::kernels
