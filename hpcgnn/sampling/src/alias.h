/// Independent draws of nodes or edges with given probabilities: the alias method.
#pragma once

#include <cstdint>
#include <vector>

#include "draws.h"
#include "graph.h"

namespace hpcgnn::sampling {

/// Walker's table in arrays of the caller, which may be shared between processes.
struct AliasTable {
  const std::uint32_t* thresholds;  ///< a column keeps draws whose 32 random bits are below this
  const std::int64_t* aliases;      ///< and passes the others to its alias
  std::int64_t size;

  std::int64_t draw(Draws& draws) const {
    const std::int64_t column = draws.below(size);
    const auto bits = static_cast<std::uint32_t>(draws.next() >> 32);
    return bits < thresholds[column] ? column : aliases[column];
  }
};

/// Fill a table for probabilities proportional to `weights`, in O(size) (Vose's algorithm). An item
/// of weight zero is never drawn; probabilities are correct to 2^-32 of a column.
/// @throws std::invalid_argument unless weights are finite and not negative, with a positive sum.
void build_alias(const double* weights, std::int64_t size, std::uint32_t* thresholds,
                 std::int64_t* aliases);

/// Append `count` nodes drawn from a table over nodes.
void sample_nodes(const AliasTable& table, std::int64_t count, Draws draws,
                  std::vector<std::int32_t>& visits);

/// Append both ends of `count` edges drawn from a table over the entries of the graph.
void sample_edges(const Graph& graph, const AliasTable& table, std::int64_t count, Draws draws,
                  std::vector<std::int32_t>& visits);

}  // namespace hpcgnn::sampling
