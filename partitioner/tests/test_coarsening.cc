#include "coarsening/coarsening.h"
#include "coarsening/hierarchy.h"
#include "deadline.h"
#include "state/score.h"
#include "support.h"

using namespace hpcgnn::volpart;
using namespace hpcgnn::volpart::testing;

namespace {

void expect_valid(const Hypergraph& graph) {
  CHECK(graph.owned_begin.size() == graph.num_vertices() + std::size_t{1});
  CHECK(graph.owned_begin.back() == graph.num_nets());
  CHECK(graph.pins_begin.back() == graph.pins.size() && graph.nets.size() == graph.pins.size());
  for (Vertex v = 0; v < graph.num_vertices(); ++v)
    for (Net net = graph.owned_begin[v]; net < graph.owned_begin[v + 1]; ++net) {
      CHECK(graph.net_owner[net] == v);
      CHECK(!graph.pins_of(net).empty());
      for (const Vertex pin : graph.pins_of(net)) CHECK(pin != v);
    }
}

/// A coarse partition must send and receive just what the same partition of the input does.
void loads_survive_contraction(const Hypergraph& graph, int num_parts) {
  const auto part = random_parts<Part>(graph.num_vertices(), num_parts, 3);
  const Weight max_weight = graph.total_weight() / 20;
  const Clustering clustering = cluster_vertices(graph, part, max_weight, Random(4));
  Hypergraph coarse = contract(graph, clustering);
  coarse.index_nets();
  expect_valid(coarse);
  CHECK(coarse.num_vertices() == clustering.num_clusters);
  CHECK(coarse.num_vertices() < graph.num_vertices());
  CHECK(coarse.num_vertices() * 2.5 + 2.5 >= graph.num_vertices());
  CHECK(coarse.total_weight() == graph.total_weight());
  std::vector<Part> coarse_part(coarse.num_vertices());
  for (Vertex v = 0; v < graph.num_vertices(); ++v) coarse_part[clustering.cluster[v]] = part[v];
  for (Vertex v = 0; v < graph.num_vertices(); ++v)
    CHECK(coarse_part[clustering.cluster[v]] == part[v]);
  const State fine_state(graph, num_parts, part);
  const State coarse_state(coarse, num_parts, coarse_part);
  CHECK(fine_state.total() == coarse_state.total());
  for (int p = 0; p < num_parts; ++p) {
    const auto at = static_cast<Part>(p);
    CHECK(fine_state.weight(at) == coarse_state.weight(at));
    CHECK(fine_state.load(at).send == coarse_state.load(at).send);
    CHECK(fine_state.load(at).recv == coarse_state.load(at).recv);
  }
}

/// Graphs that were let go of are made again as they were, up to the order of an owner's nets.
void levels_come_back(Hypergraph& input, int num_parts) {
  std::vector<Part> part = random_parts<Part>(input.num_vertices(), num_parts, 5);
  const State start(input, num_parts, part);
  const Deadline deadline(1e9);
  std::vector<Level> levels = coarsen(input, part, {9, num_parts}, deadline, Random(6));
  CHECK(levels.size() > 2);
  CHECK(input.has_pins() != input.nets_are_lent);
  std::size_t gone = 0;
  while (!levels.empty()) {
    const Hypergraph& graph = levels.back().graph;
    expect_valid(graph);
    const State state(graph, num_parts, part);
    CHECK(state.total() == start.total());
    for (int p = 0; p < num_parts; ++p) {
      const auto at = static_cast<Part>(p);
      CHECK(state.load(at).send == start.load(at).send);
      CHECK(state.load(at).recv == start.load(at).recv);
      CHECK(state.weight(at) == start.weight(at));
    }
    part = to_fine(levels.back().from_finer, part);
    levels.pop_back();
    if (!levels.empty() && levels.back().graph.pins.size() == 0) ++gone;
    restore_last(input, levels);
  }
  CHECK(gone > 0);
}

/// Where a caller keeps the nets, the pins come back from them as they were.
void pins_come_back(const Graph& graph, int num_parts) {
  const Hypergraph kept = fetch_hypergraph(graph.view(), {});
  Hypergraph input = fetch_hypergraph(graph.view(), {});
  std::vector<std::uint8_t> memory(Packed::bytes_of(input.num_nets(), input.pins.size()));
  input.nets = Packed::over(memory.data(), input.num_nets(), input.pins.size());
  input.nets_are_lent = true;
  input.index_nets();
  levels_come_back(input, num_parts);
  CHECK(!input.has_pins());
  input.index_pins();
  for (std::size_t k = 0; k < kept.pins.size(); ++k) {
    CHECK(input.pins[k] == kept.pins[k]);
    CHECK(input.nets[k] == kept.nets[k]);
  }
}

/// Where clusters keep more pins apart than is allowed, there is no level, and parts stay.
void coarsening_ends_where_pins_stay() {
  const Hypergraph graph = fetch_hypergraph(ring(96).view(), {});
  std::vector<Vertex> pairs(96);
  for (Vertex v = 0; v < 96; ++v) pairs[v] = v / 2;
  // One of the two neighbours is in the cluster of a vertex, the other is not.
  CHECK(kept_pins(graph, {pairs, 48}) == 0.5);
  CHECK(kept_pins(graph, {std::vector<Vertex>(96), 1}) == 0);
  Hypergraph input = fetch_hypergraph(random_graph(3000, 8, 22).view(), {});
  const auto part = random_parts<Part>(input.num_vertices(), 5, 5);
  for (const double most : {0.1, 1.0}) {
    std::vector<Part> coarsest = part;
    const auto levels = coarsen(input, coarsest, {9, 5, most}, Deadline(1e9), Random(6));
    CHECK(levels.empty() == (most < 1));
    CHECK((coarsest == part) == (most < 1));
  }
}

void nets_with_equal_pins_merge() {
  // Vertices 0 and 1 both send to 2 alone; as one cluster they own one net of weight 2.
  const Graph input{{0, 0, 0, 2}, {0, 1}};
  const Hypergraph graph = fetch_hypergraph(input.view(), {});
  CHECK(graph.num_nets() == 2);
  const Hypergraph coarse = contract(graph, {{0, 0, 1}, 2});
  CHECK(coarse.num_nets() == 1 && coarse.net_weight[0] == 2);
}

void each_entry_is_priced_on_one_side() {
  const Graph input = random_graph(150, 10, 71);
  const Hypergraph fetch = fetch_hypergraph(input.view(), {});
  const Hypergraph joint = joint_hypergraph(input.view(), {});
  expect_valid(fetch);
  expect_valid(joint);
  CHECK(fetch.pins.size() == joint.pins.size());
  CHECK(fetch.num_nets() != joint.num_nets());
}

}  // namespace

int test_coarsening(int, char*[]) {
  const Graph input = random_graph(400, 8, 21);
  for (const int num_parts : {1, 5}) {
    loads_survive_contraction(fetch_hypergraph(input.view(), {}), num_parts);
    loads_survive_contraction(joint_hypergraph(input.view(), {}), num_parts);
  }
  const Graph large = random_graph(3000, 8, 22);
  Hypergraph whole = fetch_hypergraph(large.view(), {});
  levels_come_back(whole, 5);
  pins_come_back(large, 5);
  coarsening_ends_where_pins_stay();
  nets_with_equal_pins_merge();
  each_entry_is_priced_on_one_side();
  return 0;
}
