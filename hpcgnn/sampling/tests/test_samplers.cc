// The samplers on ugly graphs: bounds under the sanitizers, and sets against plain code.
#include <algorithm>
#include <set>
#include <vector>

#include "alias.h"
#include "cumulative.h"
#include "fan_out.h"
#include "frontier.h"
#include "induce.h"
#include "nodes.h"
#include "testing.h"
#include "walks.h"

using namespace hpcgnn::sampling;
using hpcgnn::kernels::testing::check;
using hpcgnn::kernels::testing::Csr;
using hpcgnn::kernels::testing::random_csr;

namespace {

Graph graph_of(const Csr& a) {
  return {a.indptr.data(), a.indices.data(), a.num_rows(), a.num_rows()};
}

std::vector<Csr> graphs() {
  std::vector<int> lengths(300);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<int>(i * i % 13 % 7);
  lengths[17] = 299;
  return {random_csr({}, 0, 1),  random_csr({0}, 1, 1),    random_csr({0, 0, 0}, 3, 1),
          random_csr({1}, 1, 1), random_csr({1, 0}, 2, 1), random_csr(lengths, 300, 2)};
}

void test_walking(const Graph& graph) {
  for (const std::int64_t walkers : {0, 1, 5, 1000})
    for (const std::int64_t pops : {0, 1, 3000}) {
      std::vector<std::int32_t> visits;
      std::vector<std::vector<std::int32_t>> group;
      sample_frontiers(graph, {walkers, pops, 3, false}, 9, {4}, group);
      visits = group.front();
      const auto limit = static_cast<std::size_t>(walkers + pops);
      check(visits.size() <= limit, "no more visits than asked for");
      if (graph.num_nodes > 0) {
        std::vector<std::int32_t> by_sums;
        testing::sample_frontier_by_sums(graph, walkers, pops, {9, 4}, by_sums);
        check(by_sums.size() <= limit, "nor by sums");
      }
    }
  std::vector<std::int32_t> visits;
  sample_walks(graph, 100, 9, {2, 3}, visits);
  check(visits.size() <= 1000, "a walk has no more nodes than steps");
  if (graph.num_entries() == 0) check(visits.size() == (graph.num_nodes > 0 ? 100u : 0u), "roots");
}

void test_sets(const Graph& graph) {
  std::vector<std::int32_t> visits;
  sample_walks(graph, 40, 3, {8, 1}, visits);
  const std::set<std::int32_t> expected(visits.begin(), visits.end());
  std::vector<std::int32_t> nodes = distinct_nodes(visits);
  check(std::equal(nodes.begin(), nodes.end(), expected.begin(), expected.end()), "distinct");
  const SampledPattern found = induce(graph, nodes.data(), static_cast<std::int64_t>(nodes.size()));
  std::vector<std::int32_t> columns;
  std::vector<std::int64_t> entries;
  for (const std::int32_t node : nodes)
    for (std::int64_t e = graph.indptr[node]; e < graph.indptr[node + 1]; ++e)
      if (expected.count(graph.indices[e]) != 0) {
        const auto at = std::lower_bound(nodes.begin(), nodes.end(), graph.indices[e]);
        columns.push_back(static_cast<std::int32_t>(at - nodes.begin()));
        entries.push_back(e);
      }
  check(found.indices == columns && found.entries == entries, "induced entries");
  check(found.indptr.size() == nodes.size() + 1, "a row for each node");
  clip_nodes(nodes, 16, {1, 1});
  check(nodes.size() % 16 == 0 || nodes.size() < 16, "clipped");
  check(std::is_sorted(nodes.begin(), nodes.end()), "still ascending");
}

void test_fan_out(const Graph& graph) {
  std::vector<std::int32_t> targets;
  for (std::int32_t i = 0; i < graph.num_nodes; i += 3) targets.push_back(i);
  const auto count = static_cast<std::int64_t>(targets.size());
  const FanOut layer = sample_fan_out(graph, targets.data(), count, 4, {3, 2});
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const auto row = layer.pattern.indptr[i + 1] - layer.pattern.indptr[i];
    check(row == std::min<std::int64_t>(graph.degree(targets[i]), 4), "as many as there are");
    for (std::int64_t k = layer.pattern.indptr[i]; k < layer.pattern.indptr[i + 1]; ++k) {
      const auto entry = layer.pattern.entries[static_cast<std::size_t>(k)];
      const auto column = layer.pattern.indices[static_cast<std::size_t>(k)];
      check(layer.inputs[static_cast<std::size_t>(column)] == graph.indices[entry], "column");
      check(k == layer.pattern.indptr[i] ||
                layer.pattern.entries[static_cast<std::size_t>(k) - 1] < entry,
            "no repeats");
    }
  }
}

void test_alias() {
  const std::vector<double> weights{0, 3, 1e-9, 0, 0.5, 0};
  std::vector<std::uint32_t> thresholds(weights.size());
  std::vector<std::int64_t> aliases(weights.size());
  build_alias(weights.data(), 6, thresholds.data(), aliases.data());
  std::vector<std::int32_t> visits;
  sample_nodes({thresholds.data(), aliases.data(), 6}, 20000, {4, 4}, visits);
  for (const std::int32_t node : visits)
    check(weights[static_cast<std::size_t>(node)] > 0, "nothing without weight is drawn");
  const auto ones = std::count(visits.begin(), visits.end(), 1);
  check(ones > 16800 && ones < 17500, "as often as the weight says");
}

}  // namespace

int test_samplers(int, char*[]) {
  for (const Csr& a : graphs()) {
    test_walking(graph_of(a));
    test_sets(graph_of(a));
    test_fan_out(graph_of(a));
  }
  test_alias();
  return 0;
}
