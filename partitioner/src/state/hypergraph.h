/// The directed hypergraph that every phase works on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "volpart/csr.h"
#include "volpart/packed.h"

namespace hpcgnn::volpart {

using Vertex = std::uint32_t;
using Net = std::uint32_t;
/// An offset into pins or nets: a hypergraph has fewer than 2^32 pins.
using Offset = std::uint32_t;
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
  /// Number of merged identical nets; empty where none are merged.
  std::vector<std::uint32_t> net_weight;
  std::vector<std::uint8_t> net_push;
  std::vector<Offset> pins_begin;
  Packed pins;
  /// Nets of which v is a pin: nets[nets_begin[v] .. nets_begin[v + 1]). They are never dropped if
  /// they are borrowed, that is, in memory owned by the caller.
  std::vector<Offset> nets_begin;
  Packed nets;
  bool nets_are_lent = false;
  /// In a share of a larger hypergraph: the rows that the nets of v exchange with outside pins, a
  /// load of v's part wherever v moves. Empty in a whole hypergraph.
  std::vector<Load> outside_load;
  /// Number of last vertices that each represent a part outside the share: such a vertex owns the
  /// nets of all vertices of its part, weighs nothing, is not a pin and never moves.
  Vertex num_outside = 0;

  Vertex num_vertices() const { return static_cast<Vertex>(vertex_weight.size()); }
  /// Vertices that may move.
  Vertex num_inside() const { return num_vertices() - num_outside; }
  bool is_outside(Vertex v) const { return v >= num_inside(); }
  Net num_nets() const { return static_cast<Net>(net_owner.size()); }
  std::uint32_t weight_of(Net net) const { return net_weight.empty() ? 1 : net_weight[net]; }
  /// Pins of `net`, increasing.
  Packed::List pins_of(Net net) const { return pins.list(pins_begin[net], pins_begin[net + 1]); }
  /// Nets of v, increasing.
  Packed::List nets_of(Vertex v) const { return nets.list(nets_begin[v], nets_begin[v + 1]); }
  /// Nets that v owns or is a pin of.
  std::size_t num_nets_of(Vertex v) const {
    return nets_of(v).size() + owned_begin[v + 1] - owned_begin[v];
  }
  Weight total_weight() const;
  /// Add the load of a net with an outside owner whose only pin in the share is `pin`: it exchanges
  /// the same rows with the owner wherever it moves.
  void settle_outside(Vertex owner, Vertex pin, Weight rows, std::uint8_t push) {
    (push ? outside_load[pin] : outside_load[owner]).send += rows;
    (push ? outside_load[owner] : outside_load[pin]).recv += rows;
  }
  /// Fill `nets_begin` and `nets` from the pins.
  void index_nets();
  /// Free `nets`, half of the memory, until index_nets() is called, unless they are borrowed.
  void drop_index();
  /// Fill `pins` from the nets of all vertices.
  void index_pins();
  /// Free `pins` until index_pins() is called, if the nets are borrowed and so never dropped.
  void drop_pins();
  std::size_t num_pins() const { return pins_begin.back(); }
  bool has_pins() const { return pins.size() == num_pins(); }
};

/// One fetch net for each column with a pin; repeated entries and the diagonal are dropped.
/// @pre csr.check() passes.
/// @param[in] weights Weight of each row; empty means its stored non-zeros, at least 1.
Hypergraph fetch_hypergraph(const CsrView& csr, std::span<const Weight> weights);

/// Each non-zero belongs to the push net of its row if the row has more non-zeros than the column,
/// else to the fetch net of its column.
Hypergraph joint_hypergraph(const CsrView& csr, std::span<const Weight> weights);

}  // namespace hpcgnn::volpart
