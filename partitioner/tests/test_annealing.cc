#include <limits>
#include <vector>

#include "annealing.h"
#include "state.h"
#include "support.h"

using namespace hpcgnn::volpart;
using namespace hpcgnn::volpart::testing;

namespace {

void anneal(State& state, const Balance& balance, Objective objective, int sweeps) {
  const Deadline deadline(std::numeric_limits<double>::infinity());
  Potential potential(objective, state.num_parts(), {}, {.doublings = 5});
  Annealer annealer(state, balance, potential, deadline, Random(3));
  for (int sweep = 0; sweep < sweeps; ++sweep) annealer.sweep(1.0 / (sweep + 1), 8);
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

}  // namespace

int main() {
  sweeps_keep_the_limits_and_exact_loads();
  full_parts_exchange_vertices();
}
