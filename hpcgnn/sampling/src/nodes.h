/// Sets of nodes: from visits to ascending nodes, and from nodes back to their places.
#pragma once

#include <cstdint>
#include <vector>

#include "draws.h"

namespace hpcgnn::sampling {

/// The different nodes of `visits`, ascending. O(visits): no array over all nodes.
std::vector<std::int32_t> distinct_nodes(std::vector<std::int32_t> visits);

/// Drop random nodes until a multiple of `multiple` is left; keeps fewer than `multiple` nodes all.
void clip_nodes(std::vector<std::int32_t>& nodes, std::int64_t multiple, Draws draws);

/// Finds the place of a node in an ascending list, in memory of the size of the list.
class NodeIndex {
 public:
  NodeIndex(const std::int32_t* nodes, std::int64_t count);

  /// Whether `node` can be in the list: false is certain. One bit in a table of the first cache.
  bool maybe(std::int32_t node) const {
    const std::uint32_t bit = hash(node) >> filter_shift_;
    return (filter_[bit / 64] >> (bit % 64) & 1) != 0;
  }

  /// The place of `node` in the list; -1 when it is not there.
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
