/// The Dashboard: draws a frontier node with a probability proportional to its degree, in O(1).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "draws.h"
#include "probe.h"

namespace hpcgnn::sampling {

/// Pins and tiles of the graph-sampling paper (sections 4.2 and 4.3, Algorithms 3 and 4).
///
/// A node in the frontier owns a slot of consecutive units, of which as many count as it has
/// neighbours; every few units have a pin with the number of the tile that describes the slot. A
/// probe draws a unit: if the unit counts, its tile is the answer. Beyond the paper, slots come in
/// powers of two and pass with their pins to the next node of their size, so that neither pop nor
/// add takes longer for a large node (the paper writes a pin for each neighbour); and hubs whose
/// slot would fill much of the Dashboard have units beyond the pins, in a short list (the paper
/// cuts them to the free units).
class Dashboard {
 public:
  /// @param num_walkers nodes in the frontier.
  /// @param mean_degree of the graph.
  /// @param enlargement the paper's eta: units over num_walkers * mean_degree, above 1.
  /// @throws std::invalid_argument when there would be 2^30 units or more.
  Dashboard(std::int64_t num_walkers, double mean_degree, double enlargement);

  /// Pin the tile of a node that enters the frontier and return its number, which is valid until
  /// the next call. Units are 31-bit numbers: if hubs need more, one only gets the rest.
  /// @pre degree > 0, and fewer than num_walkers nodes are in the frontier.
  std::int32_t add(std::int64_t degree);

  /// Take a node out of the frontier, with a probability proportional to its degree, and return
  /// its tile. @pre size() > 0.
  std::int32_t pop(Draws& draws);

  /// Nodes in the frontier.
  std::int64_t size() const { return size_; }
  /// Bound for the numbers of tiles.
  std::int64_t num_tiles() const { return static_cast<std::int64_t>(tiles_.size()); }
  /// Old and new numbers of the tiles that the last `add` renumbered, ascending; empty for none.
  const std::vector<std::array<std::int32_t, 2>>& moved() const { return moved_; }
  std::int64_t num_cleanups() const { return num_cleanups_; }
  std::int64_t num_truncated() const { return num_truncated_; }
  std::int64_t num_probes() const { return num_probes_; }

 private:
  Tile& tile(std::int64_t number) { return tiles_[static_cast<std::size_t>(number)]; }
  std::int32_t& units(std::int64_t number) { return units_[static_cast<std::size_t>(number)]; }
  std::vector<std::int32_t>& free_of(std::int64_t units);
  std::int32_t append(std::int64_t units, std::int64_t degree);
  std::int32_t add_hub(std::int64_t degree);
  std::int32_t pop_hub(Draws& draws);
  void clean_up();

  int shift_;                 ///< a pin stands for 2^shift_ units
  std::int64_t num_walkers_;  ///< tiles of hubs are numbered up to this, other tiles follow
  std::int64_t num_pins_;     ///< room for pins
  std::int64_t most_pinned_;  ///< units of the largest slot; larger nodes are hubs
  std::unique_ptr<std::int32_t[]> pins_;
  std::vector<Tile> tiles_;          ///< the index array: hubs, then tiles in order of their starts
  std::vector<std::int32_t> units_;  ///< length of each tile's slot
  std::array<std::vector<std::int32_t>, 32> free_;  ///< historical tiles by the log of their length
  std::vector<std::int32_t> hubs_, free_hubs_;      ///< tiles of hubs, in the frontier and not
  std::vector<std::array<std::int32_t, 2>> moved_;
  std::int64_t used_units_ = 0, hub_units_ = 0, size_ = 0;
  std::int64_t num_cleanups_ = 0, num_truncated_ = 0, num_probes_ = 0;
};

}  // namespace hpcgnn::sampling
