/// Probing of the Dashboard: several units at a time, without branches.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace hpcgnn::sampling {

/// A tile as the probes read it. A historical tile has degree 0, so that no probe accepts it.
struct Tile {
  std::int32_t start;   ///< first unit of its slot
  std::int32_t degree;  ///< units that count; the slot may be longer
};

/// The pins in use. A pin is the number of the tile of a run of 2^shift units.
struct Board {
  const std::int32_t* pins;
  const Tile* tiles;
  std::int32_t num_pinned;  ///< units with pins; all others share the pin behind the last
  std::int32_t num_units;
  int shift;
};

inline constexpr int kProbes = 4;

/// The tile of the first of kProbes units that lies within its tile's degree; -1 if none does. Unit
/// i is the product of `num_units` and 32 bits of `random`: low, then high half of each word.
inline std::int32_t probe(const Board& board, const std::uint64_t (&random)[kProbes / 2]) {
  const auto units = static_cast<std::uint64_t>(board.num_units);
  std::int32_t tiles[kProbes];
  unsigned mask = 0;
  // All probes, needed or not: their reads overlap, and no branch is mispredicted.
  for (int i = 0; i < kProbes; ++i) {
    const auto bits = static_cast<std::uint32_t>(random[i / 2] >> (i % 2 * 32));
    const std::int32_t place =
        std::min(static_cast<std::int32_t>(bits * units >> 32), board.num_pinned);
    tiles[i] = board.pins[place >> board.shift];
    const Tile tile = board.tiles[tiles[i]];
    mask |= static_cast<unsigned>(place - tile.start < tile.degree) << i;
  }
  return mask == 0 ? -1 : tiles[std::countr_zero(mask)];
}

}  // namespace hpcgnn::sampling
