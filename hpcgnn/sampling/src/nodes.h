/// Sets of nodes: from visits to ascending nodes, and from nodes back to their positions.
#pragma once

#include <cstdint>
#include <vector>

#include "draws.h"

namespace hpcgnn::sampling {

/// The different nodes of `visits`, ascending. O(visits): no array over all nodes.
std::vector<std::int32_t> distinct_nodes(std::vector<std::int32_t> visits);

/// Drop random nodes until their number is a multiple of `multiple`; keep all if they are fewer.
void clip_nodes(std::vector<std::int32_t>& nodes, std::int64_t multiple, Draws draws);

/// Finds the position of a node in an ascending list, in memory of the size of the list.
class NodeIndex {
 public:
  NodeIndex(const std::int32_t* nodes, std::int64_t count);

  /// Whether `node` may be in the list; false is certain. Reads a bit of a table in level-1 cache.
  bool maybe(std::int32_t node) const {
    const std::uint32_t bit = hash(node) >> filter_shift_;
    return (filter_[bit / 64] >> (bit % 64) & 1) != 0;
  }

  /// The position of `node` in the list; -1 if it is not there.
  std::int32_t find(std::int32_t node) const {
    for (std::uint32_t slot = hash(node) >> table_shift_;; slot = (slot + 1) & table_mask_) {
      if (table_[slot].node == node) return table_[slot].place;
      if (table_[slot].place < 0) return -1;
    }
  }

 private:
  struct Slot {
    std::int32_t node = -1, place = -1;
  };

  static std::uint32_t hash(std::int32_t node) {
    return static_cast<std::uint32_t>(node) * 0x9e3779b1u;
  }

  int filter_shift_, table_shift_;
  std::uint32_t table_mask_;
  std::vector<std::uint64_t> filter_;
  std::vector<Slot> table_;
};

}  // namespace hpcgnn::sampling
