#include <algorithm>
#include <limits>

#include "refinement/annealing.h"
#include "state/state.h"
#include "support.h"
#include "volpart/metrics.h"

using namespace hpcgnn::volpart;
using namespace hpcgnn::volpart::testing;

namespace {

void expect_equal(const State& state, const State& fresh) {
  CHECK(state.total() == fresh.total());
  for (int p = 0; p < state.num_parts(); ++p) {
    const auto part = static_cast<Part>(p);
    CHECK(state.weight(part) == fresh.weight(part));
    CHECK(state.load(part).send == fresh.load(part).send);
    CHECK(state.load(part).recv == fresh.load(part).recv);
  }
}

void loads_stay_exact_under_moves(const Hypergraph& graph, int num_parts) {
  State state(graph, num_parts, random_parts<Part>(graph.num_vertices(), num_parts, 8));
  MoveEffect effect(num_parts);
  Random random(9);
  for (int move = 0; move < 2000; ++move) {
    const Vertex v = random.below(graph.num_vertices());
    const auto q = static_cast<Part>(random.below(static_cast<std::uint64_t>(num_parts)));
    if (q == state.part(v)) continue;
    state.evaluate(v, q, effect);
    state.apply(v, q, effect);
    if (move % 200 != 0) continue;
    expect_equal(state, State(graph, num_parts, {state.parts().begin(), state.parts().end()}));
  }
}

void loads_are_the_metrics(const Graph& input, int num_parts) {
  const Hypergraph graph = fetch_hypergraph(input.view(), {});
  const auto part = random_parts<std::int32_t>(graph.num_vertices(), num_parts, 10);
  const State state(graph, num_parts, {part.begin(), part.end()});
  const Metrics metrics = measure(input.view(), part, num_parts, {});
  Load most;
  for (int p = 0; p < num_parts; ++p) {
    most.send = std::max(most.send, state.load(static_cast<Part>(p)).send);
    most.recv = std::max(most.recv, state.load(static_cast<Part>(p)).recv);
  }
  CHECK(state.total() == metrics.total_rows);
  CHECK(most.send == metrics.max_send_rows);
  CHECK(most.recv == metrics.max_recv_rows);
}

void rebalancing_keeps_the_limits() {
  const Graph input = random_graph(2000, 12, 51);
  const Hypergraph graph = fetch_hypergraph(input.view(), {});
  State state(graph, 6, std::vector<Part>(graph.num_vertices(), 2));
  const Balance balance(state, 0.05);
  CHECK(balance.total_excess(state) > 0);
  Potential potential(Objective::kMaxBoth, 6, {}, {.doublings = 5, .load_cap = 1000});
  const Deadline deadline(std::numeric_limits<double>::infinity());
  Annealer(state, balance, potential, deadline, Random(5)).rebalance();
  CHECK(balance.total_excess(state) == 0);
}

void heavy_vertices_are_separated() {
  const std::vector<Weight> weights{1, 90, 1, 80, 1, 70};
  std::vector<Part> part(weights.size(), 1);
  separate_heavy(weights, 4, part);
  CHECK(part[1] == 1 && part[3] != 1 && part[5] != 1 && part[3] != part[5]);
}

}  // namespace

int test_state(int, char*[]) {
  const Graph input = random_graph(120, 8, 7);
  for (const int num_parts : {1, 3, 17, 300}) {
    loads_stay_exact_under_moves(fetch_hypergraph(input.view(), {}), num_parts);
    loads_stay_exact_under_moves(joint_hypergraph(input.view(), {}), num_parts);
    loads_are_the_metrics(input, num_parts);
  }
  rebalancing_keeps_the_limits();
  heavy_vertices_are_separated();
  return 0;
}
