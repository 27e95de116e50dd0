#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <utility>

#include "support.h"
#include "volpart/sketch.h"

using namespace hpcgnn::volpart;
using namespace hpcgnn::volpart::testing;

namespace {

constexpr std::int64_t kAllEdges = std::int64_t{1} << 40;

using Edges = std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t>;

Edges edges_of(const Sketch& sketch) {
  Edges found;
  for (std::size_t v = 0; v + 1 < sketch.indptr.size(); ++v)
    for (std::int64_t k = sketch.indptr[v]; k < sketch.indptr[v + 1]; ++k) {
      const auto at = static_cast<std::size_t>(k);
      const std::pair edge{static_cast<std::int32_t>(v), sketch.indices[at]};
      CHECK(!found.contains(edge));
      found[edge] = sketch.edge_weight[at];
    }
  return found;
}

std::int64_t weight_of(const Edges& edges) {
  std::int64_t sum = 0;
  for (const auto& [edge, weight] : edges) sum += weight;
  return sum;
}

void expect_valid(const Graph& input, const Sketch& sketch) {
  const auto num_clusters = static_cast<std::int32_t>(sketch.vertex_weight.size());
  CHECK(static_cast<std::int64_t>(sketch.cluster.size()) == input.num_rows());
  CHECK(sketch.indptr.size() == sketch.vertex_weight.size() + 1);
  std::set<std::int32_t> used(sketch.cluster.begin(), sketch.cluster.end());
  CHECK(static_cast<std::int32_t>(used.size()) == num_clusters);
  CHECK(*used.begin() == 0 && *used.rbegin() == num_clusters - 1);
  const Edges edges = edges_of(sketch);
  for (const auto& [edge, weight] : edges) {
    const auto& [from, to] = edge;
    CHECK(from != to && weight > 0);
    CHECK(edges.at({to, from}) == weight);
  }
}

void all_edges_stay_where_there_is_room() {
  const Graph input = ring(50);
  const Sketch found = sketch(input.view(), 4, {}, kAllEdges, 1);
  expect_valid(input, found);
  CHECK(found.vertex_weight.size() == 50);
  for (const auto& [edge, weight] : edges_of(found)) CHECK(weight == 2);
}

void clusters_carry_the_weights_of_their_rows() {
  const Graph input = random_graph(800, 8, 91);
  const std::vector<std::int64_t> weights(800, 3);
  const Sketch found = sketch(input.view(), 2, weights, 800, 5);
  expect_valid(input, found);
  CHECK(found.vertex_weight.size() < 400);
  std::vector<std::int64_t> sums(found.vertex_weight.size());
  for (const std::int32_t at : found.cluster) sums[static_cast<std::size_t>(at)] += 3;
  CHECK(sums == found.vertex_weight);
}

void a_sample_keeps_the_weight_of_all_edges() {
  const Graph input = random_graph(600, 60, 92);
  const std::int64_t max_edges = 4000;
  const Sketch whole = sketch(input.view(), 1000, {}, kAllEdges, 7);
  const Sketch sample = sketch(input.view(), 1000, {}, max_edges, 7);
  expect_valid(input, sample);
  CHECK(sample.indices.size() * 2 < whole.indices.size());
  CHECK(static_cast<std::int64_t>(sample.indices.size()) < max_edges + max_edges / 10);
  const Sketch again = sketch(input.view(), 1000, {}, max_edges, 7);
  CHECK(again.indices == sample.indices && again.edge_weight == sample.edge_weight);
  const std::int64_t expected = weight_of(edges_of(whole)), got = weight_of(edges_of(sample));
  CHECK(std::abs(got - expected) * 10 < expected);
}

void no_sketch_of_wrong_arguments() {
  const Graph input = ring(5);
  const std::vector<std::int64_t> few{1, 1};
  int refused = 0;
  for (const int num_parts : {0, 2}) try {
      sketch(input.view(), num_parts, few, kAllEdges, 1);
    } catch (const std::invalid_argument&) {
      ++refused;
    }
  CHECK(refused == 2);
  CHECK(sketch(Graph{}.view(), 3, {}, kAllEdges, 1).cluster.empty());
}

}  // namespace

int test_sketch(int, char*[]) {
  all_edges_stay_where_there_is_room();
  clusters_carry_the_weights_of_their_rows();
  a_sample_keeps_the_weight_of_all_edges();
  no_sketch_of_wrong_arguments();
  return 0;
}
