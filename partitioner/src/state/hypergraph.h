/// The directed hypergraph that every phase works on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "volpart/csr.h"

namespace hpcgnn::volpart {

using Vertex = std::uint32_t;
using Net = std::uint32_t;
using Offset = std::uint64_t;
using Weight = std::int64_t;
/// Rows that one part must receive: fewer than there are vertices.
using Rows = std::uint32_t;

/// Rows that one part sends and receives.
struct Load {
  Weight send = 0;
  Weight recv = 0;
};

/// Vertices own nets. A *fetch* net is a row of the dense operand: its owner's part sends it to
/// every other part that holds one of its pins. A *push* net is a partial sum: every part other
/// than the owner's that holds a pin sends one to the owner's part. The owner is never a pin.
struct Hypergraph {
  std::vector<Weight> vertex_weight;
  /// Nets owned by v: [owned_begin[v], owned_begin[v + 1]).
  std::vector<Net> owned_begin;
  std::vector<Vertex> net_owner;
  /// Number of merged identical nets.
  std::vector<std::uint32_t> net_weight;
  std::vector<std::uint8_t> net_push;
  std::vector<Offset> pins_begin;
  std::vector<Vertex> pins;
  /// Nets that v is a pin of: nets[nets_begin[v] .. nets_begin[v + 1]).
  std::vector<Offset> nets_begin;
  std::vector<Net> nets;
  /// Where this is a share of a larger hypergraph: what the nets of v exchange with pins outside,
  /// which is at the part of v wherever v moves. Empty in a whole hypergraph.
  std::vector<Load> outside_load;
  /// So many of the last vertices stand for a part outside of the share each: they own the nets of
  /// all its vertices, weigh nothing, are no pins and never move.
  Vertex num_outside = 0;

  Vertex num_vertices() const { return static_cast<Vertex>(vertex_weight.size()); }
  /// Vertices that may move.
  Vertex num_inside() const { return num_vertices() - num_outside; }
  bool is_outside(Vertex v) const { return v >= num_inside(); }
  Net num_nets() const { return static_cast<Net>(net_owner.size()); }
  std::span<const Vertex> pins_of(Net net) const {
    return {pins.data() + pins_begin[net], pins.data() + pins_begin[net + 1]};
  }
  std::span<const Net> nets_of(Vertex v) const {
    return {nets.data() + nets_begin[v], nets.data() + nets_begin[v + 1]};
  }
  Weight total_weight() const;
  /// Account for a net of an owner outside whose only pin in the share is `pin`: wherever that
  /// moves, it exchanges the same with the owner.
  void settle_outside(Vertex owner, Vertex pin, Weight rows, std::uint8_t push) {
    (push ? outside_load[pin] : outside_load[owner]).send += rows;
    (push ? outside_load[owner] : outside_load[pin]).recv += rows;
  }
  /// Fill `nets_begin` and `nets` from the pins.
  void index_nets();
  /// Free `nets`, half of the memory, until index_nets() is called again.
  void drop_index();
};

/// One fetch net for each column with a pin; repeated entries and the diagonal are dropped.
/// @pre csr.check() passes.
/// @param[in] weights Weight of each row; empty means its stored non-zeros, at least 1.
Hypergraph fetch_hypergraph(const CsrView& csr, std::span<const Weight> weights);

/// Each non-zero belongs to the push net of its row where the row has more non-zeros than the
/// column, else to the fetch net of its column.
Hypergraph joint_hypergraph(const CsrView& csr, std::span<const Weight> weights);

}  // namespace hpcgnn::volpart
