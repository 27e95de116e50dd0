#include <map>

#include "state/connectivity.h"
#include "support.h"

using namespace hpcgnn::volpart;
using namespace hpcgnn::volpart::testing;

namespace {

std::map<Part, std::uint32_t> slow_counts(const Hypergraph& graph, Net net,
                                          const std::vector<Part>& part) {
  std::map<Part, std::uint32_t> counts;
  for (const Vertex pin : graph.pins_of(net)) ++counts[part[pin]];
  return counts;
}

void expect_equal(const Hypergraph& graph, const Connectivity& tables,
                  const std::vector<Part>& part, int num_parts) {
  for (Net net = 0; net < graph.num_nets(); ++net) {
    const std::map<Part, std::uint32_t> counts = slow_counts(graph, net, part);
    CHECK(tables.num_parts(net) == counts.size());
    for (const auto& [p, count] : counts) CHECK(tables.count(net, p) == count);
    // Most of many parts have no pins.
    for (int p = 0; p < num_parts; p += 1 + num_parts / 1024) {
      const auto found = counts.find(static_cast<Part>(p));
      CHECK(tables.count(net, static_cast<Part>(p)) == (found == counts.end() ? 0 : found->second));
    }
    std::size_t visited = 0;
    tables.for_each_part(net, [&](Part p) {
      CHECK(counts.contains(p));
      ++visited;
    });
    CHECK(visited == counts.size());
  }
}

void counts_stay_exact_under_moves(int num_parts) {
  const Graph input = random_graph(90, 9, 31);
  const Hypergraph graph = fetch_hypergraph(input.view(), {});
  auto part = random_parts<Part>(graph.num_vertices(), num_parts, 32);
  Connectivity tables(graph, num_parts, part);
  Random random(33);
  for (int move = 0; move < 3000; ++move) {
    const Vertex v = random.below(graph.num_vertices());
    const auto q = static_cast<Part>(random.below(static_cast<std::uint64_t>(num_parts)));
    for (const Net net : graph.nets_of(v)) {
      tables.remove(net, part[v]);
      tables.add(net, q);
    }
    part[v] = q;
    if (move % 500 == 0) expect_equal(graph, tables, part, num_parts);
  }
  expect_equal(graph, tables, part, num_parts);
}

void memory_does_not_grow_with_the_parts() {
  const Graph input = ring(1000);
  const Hypergraph graph = fetch_hypergraph(input.view(), {});
  const std::vector<Part> part(1000, 0);
  CHECK(Connectivity(graph, 1024, part).memory_bytes() ==
        Connectivity(graph, 64, part).memory_bytes());
}

}  // namespace

int test_connectivity(int, char*[]) {
  for (const int num_parts : {1, 2, 7, 40, 1024, 1 << 16}) counts_stay_exact_under_moves(num_parts);
  memory_does_not_grow_with_the_parts();
  return 0;
}
