#include "state/hypergraph.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace hpcgnn::volpart {
namespace {

/// The pattern of one kind of nets: members of net j are entries [begin[j], begin[j + 1]).
struct Lists {
  std::vector<Offset> begin;
  Packed members;
};

/// Row non-zeros. An empty row counts one if its node is sent, as the node has activations; nodes
/// without any non-zero weigh nothing, so that they do not loosen the bound for all others.
std::vector<Weight> vertex_weights(const CsrView& csr, std::span<const Weight> weights) {
  if (!weights.empty()) return {weights.begin(), weights.end()};
  std::vector<Weight> found(static_cast<std::size_t>(csr.num_rows()));
  for (std::int64_t k = 0; k < csr.num_nonzeros(); ++k)
    found[static_cast<std::size_t>(csr.column(k))] = 1;
  for (std::int64_t row = 0; row < csr.num_rows(); ++row) {
    Weight& weight = found[static_cast<std::size_t>(row)];
    weight = std::max<Weight>(csr.row_end(row) - csr.row_begin(row), weight);
  }
  return found;
}

/// Call visit(row, column) once for every distinct off-diagonal non-zero, rows ascending.
template <class Visit>
void for_each_entry(const CsrView& csr, Visit&& visit) {
  std::vector<std::int64_t> last_row(static_cast<std::size_t>(csr.num_rows()), -1);
  for (std::int64_t row = 0; row < csr.num_rows(); ++row)
    for (std::int64_t k = csr.row_begin(row); k < csr.row_end(row); ++k) {
      const std::int64_t column = csr.column(k);
      if (column == row || last_row[static_cast<std::size_t>(column)] == row) continue;
      last_row[static_cast<std::size_t>(column)] = row;
      visit(static_cast<Vertex>(row), static_cast<Vertex>(column));
    }
}

/// Gather (list, member) pairs, given by `produce(emit)`, which is called twice; members are below
/// `limit`.
template <class Produce>
Lists gather(std::size_t num_lists, std::size_t limit, Produce&& produce) {
  Lists lists{std::vector<Offset>(num_lists + 1), {}};
  produce([&](std::size_t list, Vertex) { ++lists.begin[list + 1]; });
  std::partial_sum(lists.begin.begin(), lists.begin.end(), lists.begin.begin());
  lists.members = Packed(limit, lists.begin.back());
  std::vector<Offset> next(lists.begin.begin(), lists.begin.end() - 1);
  produce([&](std::size_t list, Vertex member) { lists.members.set(next[list]++, member); });
  return lists;
}

/// Make nets of the lists; list l belongs to vertex l / kinds, and is a push net if l % kinds is 1.
Hypergraph from_lists(Lists lists, std::size_t kinds, std::vector<Weight> weights) {
  Hypergraph graph;
  graph.vertex_weight = std::move(weights);
  graph.owned_begin.push_back(0);
  graph.pins_begin.push_back(0);
  for (std::size_t list = 0; list + 1 < lists.begin.size(); ++list) {
    if (lists.begin[list] < lists.begin[list + 1]) {
      graph.net_owner.push_back(static_cast<Vertex>(list / kinds));
      graph.net_push.push_back(static_cast<std::uint8_t>(list % kinds));
      graph.pins_begin.push_back(lists.begin[list + 1]);
    }
    if ((list + 1) % kinds == 0) graph.owned_begin.push_back(graph.num_nets());
  }
  graph.pins = std::move(lists.members);
  graph.index_nets();
  return graph;
}

}  // namespace

Weight Hypergraph::total_weight() const {
  return std::accumulate(vertex_weight.begin(), vertex_weight.end(), Weight{0});
}

void Hypergraph::index_nets() {
  nets_begin.assign(vertex_weight.size() + 1, 0);
  for (const Vertex pin : pins.list(0, pins.size())) ++nets_begin[pin + 1];
  std::partial_sum(nets_begin.begin(), nets_begin.end(), nets_begin.begin());
  if (!nets_are_lent) nets = Packed(num_nets(), pins.size());
  std::vector<Offset> next(nets_begin.begin(), nets_begin.end() - 1);
  for (Net net = 0; net < num_nets(); ++net)
    for (const Vertex pin : pins_of(net)) nets.set(next[pin]++, net);
}

void Hypergraph::drop_index() {
  if (!nets_are_lent) nets = {};
}

void Hypergraph::index_pins() {
  pins = Packed(num_vertices(), num_pins());
  std::vector<Offset> next(pins_begin.begin(), pins_begin.end() - 1);
  for (Vertex v = 0; v < num_vertices(); ++v)
    for (const Net net : nets_of(v)) pins.set(next[net]++, v);
}

void Hypergraph::drop_pins() {
  if (nets_are_lent) pins = {};
}

Hypergraph fetch_hypergraph(const CsrView& csr, std::span<const Weight> weights) {
  const auto num_rows = static_cast<std::size_t>(csr.num_rows());
  Lists columns = gather(num_rows, num_rows, [&](auto&& emit) {
    for_each_entry(csr, [&](Vertex row, Vertex column) { emit(column, row); });
  });
  return from_lists(std::move(columns), 1, vertex_weights(csr, weights));
}

Hypergraph joint_hypergraph(const CsrView& csr, std::span<const Weight> weights) {
  const auto num_rows = static_cast<std::size_t>(csr.num_rows());
  std::vector<std::uint32_t> row_size(num_rows), column_size(num_rows);
  for_each_entry(csr, [&](Vertex row, Vertex column) {
    ++row_size[row];
    ++column_size[column];
  });
  Lists both = gather(2 * num_rows, num_rows, [&](auto&& emit) {
    for_each_entry(csr, [&](Vertex row, Vertex column) {
      if (row_size[row] > column_size[column])
        emit(2 * static_cast<std::size_t>(row) + 1, column);
      else
        emit(2 * static_cast<std::size_t>(column), row);
    });
  });
  return from_lists(std::move(both), 2, vertex_weights(csr, weights));
}

}  // namespace hpcgnn::volpart
