/// A share of a graph that is spread over processes: the vertices of some of the parts.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "volpart/options.h"
#include "volpart/packed.h"

namespace hpcgnn::volpart {

/// The vertices of the parts [0, num_own), all of them, and the nets that they are pins of. Other
/// parts are *outside*. Arrays belong to the caller and are used in place.
struct Share {
  int num_parts = 1;
  int num_own = 1;
  /// Nets that vertex v is a pin of: nets[indptr[v]] .. nets[indptr[v + 1] - 1], each once.
  std::span<const std::int64_t> indptr;
  Packed nets;
  /// Of each net: its vertex of the share, or, for an owner in the part q outside,
  /// num_vertices + q - num_own.
  std::span<const std::int32_t> net_owner;
  /// 1 for a partial sum that pins send to the owner, 0 for a row that the owner sends to pins.
  std::span<const std::uint8_t> net_push;
  std::span<const std::int64_t> weights;
  std::span<const std::int32_t> part;

  std::size_t num_vertices() const { return weights.size(); }

  /// @throws std::invalid_argument naming the first thing that does not fit. O(nets + pins).
  void check() const;
};

inline constexpr std::size_t kNearest = 16;

/// What the pins in a share say of its nets.
struct ShareCounts {
  /// Of each net: own parts that hold a pin.
  std::vector<std::int32_t> parts;
  /// Of each net: whether its owner's part, an own one, holds a pin.
  std::vector<std::uint8_t> owner_holds;
  /// Of each own part: fetch nets, push nets of other parts' vertices that have a pin in it.
  std::vector<std::int64_t> fetched, pushed;
  /// Pins of fetch nets in other parts than the owner's.
  std::int64_t cut_pins = 0;
  /// Of each own part, kNearest each: the parts that own most of the nets, of either kind, with a
  /// pin in it, and how many nets; -1 and 0 where there are fewer.
  std::vector<std::int32_t> nearest;
  std::vector<std::int64_t> nearest_nets;
  /// The most fetch nets of one part that have a pin in one own part.
  std::int64_t max_pair_rows = 0;
};

/// O(pins + nets + parts) time and memory for vertices, nets and parts.
ShareCounts count_share(const Share& share);

/// The most fetch nets of one vertex whose owners, of weights `owner_weight`, do not fit beside it
/// into a part: what the busiest part receives in every partition.
std::int64_t receive_bound(const Share& share, std::span<const std::int64_t> owner_weight,
                           double average_weight, double imbalance);

/// Rows sent and received: [2 p] and [2 p + 1] of part or vertex p.
using Loads = std::vector<std::int64_t>;
/// Add up `Loads` of all shares, which call it in turn.
using SumOverShares = std::function<Loads(const Loads&)>;

/// What a share must be told of the whole.
struct Whole {
  std::int64_t total_weight = 0;
  /// Of each vertex of the share: what its nets exchange with parts outside.
  std::span<const std::int64_t> outside_load;
  /// Of all parts, exactly.
  std::span<const std::int64_t> load;
  /// Rows that the busiest receiver gets in every partition; 0 where receiving is not priced.
  std::int64_t receive_bound = 0;
};

/// Refine the parts of a share by one V-cycle, moving vertices among them, while other processes do
/// the same with other shares. Loads of parts outside follow at every exchange; where their
/// vertices are does not, so the true loads have to be counted afterwards. Parts are within their
/// weight limits where they can be; the objective may have become worse. The memory of `share.nets`
/// is worked in: in the end each vertex has its nets there again, in some order.
/// @param[in] cycle,cycles The how manieth of how many such calls this is: later ones price loads
/// more steeply.
/// @returns The part of each vertex.
std::vector<std::int32_t> refine_share(Share& share, const Whole& whole, const Options& options,
                                       int cycle, int cycles, const SumOverShares& sum);

}  // namespace hpcgnn::volpart
