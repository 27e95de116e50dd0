/// A small vertex cover of a block's graph in almost linear time.
#pragma once

#include "cover_graph.h"

namespace hpcgnn::kernels {

/// Mark in `graph.in_cover` a cover that is not larger than all columns or all rows: the neighbour
/// of every vertex with one uncovered entry left, and failing such vertices the next by descending
/// degree; then vertices with covered neighbours only are taken out again. O(entries + V log V).
void cover_by_degree(CoverGraph& graph);

}  // namespace hpcgnn::kernels
