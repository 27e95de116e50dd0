/// A small vertex cover and a large matching of a block's graph in almost linear time.
#pragma once

#include <cstdint>

#include "cover_graph.h"

namespace hpcgnn::kernels {

/// Make `graph.mate` a maximal matching and `graph.in_cover` a cover, and return the size of the
/// matching.
///
/// A vertex with one uncovered entry left has its neighbour taken into the cover, which loses
/// nothing (Karp and Sipser's rule); failing such vertices, one is taken that has the most
/// uncovered entries up to a factor of two. A taken vertex is matched with its free neighbour of
/// fewest uncovered entries. O(entries + vertices x log of the largest degree).
std::int64_t cover_greedily(CoverGraph& graph);

/// Take vertices with covered neighbours only out of the cover, and replace it by all columns or
/// all rows where these are fewer.
void shrink_cover(CoverGraph& graph);

}  // namespace hpcgnn::kernels
