#include <limits>
#include <vector>

#include "refinement/annealing.h"
#include "refinement/receive_bound.h"
#include "state/state.h"
#include "support.h"

using namespace hpcgnn::volpart;
using namespace hpcgnn::volpart::testing;

namespace {

void anneal(State& state, const Balance& balance, Objective objective, int sweeps) {
  const Deadline deadline(std::numeric_limits<double>::infinity());
  Potential potential(objective, state.num_parts(), 0, {.doublings = 5});
  Annealer annealer(state, balance, potential, deadline, Random(3));
  for (int sweep = 0; sweep < sweeps; ++sweep)
    for (int pass = 0; pass < 2; ++pass) annealer.sweep(1.0 / (sweep + 1), 4);
}

void sweeps_keep_the_limits_and_exact_loads() {
  const Graph input = random_graph(1500, 10, 61);
  const Hypergraph graph = fetch_hypergraph(input.view(), {});
  std::vector<Part> part(graph.num_vertices());
  for (Vertex v = 0; v < graph.num_vertices(); ++v) part[v] = static_cast<Part>(v % 5);
  State state(graph, 5, std::move(part));
  const Balance balance(state, 0.02);
  const Weight before = state.total(), excess = balance.total_excess(state);
  anneal(state, balance, Objective::kMaxBoth, 5);
  CHECK(state.total() < before);
  CHECK(balance.total_excess(state) <= excess);
  const State fresh(graph, 5, {state.parts().begin(), state.parts().end()});
  CHECK(fresh.total() == state.total());
  for (Part p = 0; p < 5; ++p) CHECK(fresh.load(p).send == state.load(p).send);
}

/// Two cliques, a member of each in the other's part, and no room in either part: no single move
/// is allowed.
void full_parts_exchange_vertices() {
  constexpr std::int32_t kSize = 6;
  Graph input;
  std::vector<Part> part;
  for (std::int32_t row = 0; row < 2 * kSize; ++row) {
    for (std::int32_t column = 0; column < 2 * kSize; ++column)
      if (column != row && column / kSize == row / kSize) input.indices.push_back(column);
    input.indptr.push_back(static_cast<std::int64_t>(input.indices.size()));
    part.push_back(static_cast<Part>((row / kSize + (row % kSize == 0 ? 1 : 0)) % 2));
  }
  const Hypergraph graph = fetch_hypergraph(input.view(), {});
  for (const Objective objective : {Objective::kTotal, Objective::kMaxSend, Objective::kMaxBoth}) {
    State state(graph, 2, part);
    const Balance balance(state, 0);
    CHECK(!balance.allows(state, 0, 0));
    anneal(state, balance, objective, 20);
    CHECK(state.total() == 0);
    CHECK(balance.total_excess(state) == 0);
  }
}

/// A strip of a mesh in two parts, one too heavy: what is too much leaves at the border.
void rebalancing_takes_the_cheapest() {
  constexpr std::int32_t kNodes = 1600;
  Graph input;
  std::vector<Part> part;
  for (std::int32_t row = 0; row < kNodes; ++row) {
    for (const std::int32_t step : {-40, -1, 1, 40})
      if (row + step >= 0 && row + step < kNodes) input.indices.push_back(row + step);
    input.indptr.push_back(static_cast<std::int64_t>(input.indices.size()));
    part.push_back(static_cast<Part>(row < 880 ? 0 : 1));
  }
  const Hypergraph graph = fetch_hypergraph(input.view(), {});
  State state(graph, 2, part);
  const Balance balance(state, 0.05);
  CHECK(balance.total_excess(state) > 0);
  const Weight before = state.total();
  const Deadline deadline(std::numeric_limits<double>::infinity());
  Potential potential(Objective::kMaxSend, 2, 0, {.doublings = 5});
  Annealer(state, balance, potential, deadline, Random(5)).rebalance();
  CHECK(balance.total_excess(state) == 0);
  CHECK(state.total() < 2 * before);
  const State fresh(graph, 2, {state.parts().begin(), state.parts().end()});
  CHECK(fresh.total() == state.total() && fresh.weight(0) == state.weight(0));
}

void a_hub_bounds_what_is_received() {
  // Node 0 reads 100 others that read nothing: beside it, five of weight 1 fit into 1.05 * 100.
  Graph input{{0, 100}, {}};
  for (std::int32_t leaf = 1; leaf <= 100; ++leaf) {
    input.indices.push_back(leaf);
    input.indptr.push_back(100);
  }
  const Hypergraph graph = fetch_hypergraph(input.view(), {});
  CHECK(receive_bound(graph, 4, 0.05) == 95);
  CHECK(receive_bound(graph, 1, 0.05) == 0);
}

}  // namespace

int test_annealing(int, char*[]) {
  sweeps_keep_the_limits_and_exact_loads();
  full_parts_exchange_vertices();
  rebalancing_takes_the_cheapest();
  a_hub_bounds_what_is_received();
  return 0;
}
