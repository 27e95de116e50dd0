/// A process's share of a distributed graph: the vertices of some of the parts.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "volpart/options.h"
#include "volpart/packed.h"

namespace hpcgnn::volpart {

/// All vertices of the parts [0, num_own), and the nets of which they are pins. Other parts are
/// *outside*. The caller owns the arrays, which are used in place.
struct Share {
  int num_parts = 1;
  int num_own = 1;
  /// Nets of which vertex v is a pin: nets[indptr[v]] .. nets[indptr[v + 1] - 1], each once.
  std::span<const std::int64_t> indptr;
  Packed nets;
  /// Owner of each net: a vertex of the share, or num_vertices + q - num_own for an owner in the
  /// outside part q.
  std::span<const std::int32_t> net_owner;
  /// 1 for a partial sum that pins send to the owner, 0 for a row that the owner sends to pins.
  std::span<const std::uint8_t> net_push;
  std::span<const std::int64_t> weights;
  std::span<const std::int32_t> part;

  std::size_t num_vertices() const { return weights.size(); }

  /// @throws std::invalid_argument naming the first inconsistency. O(nets + pins).
  void check() const;
};

inline constexpr std::size_t kNearest = 16;

/// Facts about the nets of a share, derived from the share's pins.
struct ShareCounts {
  /// For each net: number of own parts that hold a pin.
  std::vector<std::int32_t> parts;
  /// For each net: whether its owner's part is an own part and holds a pin.
  std::vector<std::uint8_t> owner_holds;
  /// For each own part: fetch nets and push nets of other parts' vertices that have a pin in it.
  std::vector<std::int64_t> fetched, pushed;
  /// Pins of fetch nets in other parts than the owner's.
  std::int64_t cut_pins = 0;
  /// For each own part, kNearest entries each: the parts that own most of the nets (of either kind)
  /// with a pin in it, and their numbers of nets; padded with -1 and 0.
  std::vector<std::int32_t> nearest;
  std::vector<std::int64_t> nearest_nets;
  /// The most fetch nets of one part that have a pin in one own part.
  std::int64_t max_pair_rows = 0;
};

/// O(pins + nets + parts) time and memory for vertices, nets and parts.
ShareCounts count_share(const Share& share);

/// Lower bound of the rows that the busiest part receives in any partition: the maximum over
/// vertices of fetch nets whose owners, of weights `owner_weight`, do not fit into the vertex's
/// part.
std::int64_t receive_bound(const Share& share, std::span<const std::int64_t> owner_weight,
                           double average_weight, double imbalance);

/// Rows sent and received: [2 p] and [2 p + 1] of part or vertex p.
using Loads = std::vector<std::int64_t>;
/// Add up `Loads` of all shares, which call it in turn.
using SumOverShares = std::function<Loads(const Loads&)>;

/// Facts about the whole graph that the refinement of a share needs.
struct Whole {
  std::int64_t total_weight = 0;
  /// For each vertex of the share: rows that its nets exchange with outside parts.
  std::span<const std::int64_t> outside_load;
  /// Exact loads of all parts.
  std::span<const std::int64_t> load;
  /// Lower bound of the busiest receiver's rows in any partition; 0 if receiving is not priced.
  std::int64_t receive_bound = 0;
};

/// Refine the parts of a share by one V-cycle, moving vertices among them, while other processes do
/// the same with other shares. Every exchange updates the loads of outside parts, but not the
/// positions of their vertices, so the true loads have to be counted afterwards. Parts keep their
/// weight limits if possible; the objective may become worse. The memory of `share.nets` is used as
/// work space: in the end each vertex has its nets there again, in some order.
/// @param[in] cycle,cycles Index of this call and number of such calls: later ones price loads
/// more steeply.
/// @returns The part of each vertex.
std::vector<std::int32_t> refine_share(Share& share, const Whole& whole, const Options& options,
                                       int cycle, int cycles, const SumOverShares& sum);

}  // namespace hpcgnn::volpart
