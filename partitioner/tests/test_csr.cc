#include <functional>
#include <stdexcept>
#include <string>

#include "support.h"
#include "volpart/metrics.h"

using namespace hpcgnn::volpart;
using hpcgnn::volpart::testing::Graph;

namespace {

void expect_fault(const Graph& graph, const std::string& text) {
  try {
    graph.view().check();
  } catch (const std::invalid_argument& error) {
    CHECK(std::string(error.what()).find(text) != std::string::npos);
    return;
  }
  CHECK(false);
}

void malformed_patterns_are_refused() {
  expect_fault({{}, {}}, "indptr is empty");
  expect_fault({{1, 1}, {0}}, "starts at 1");
  expect_fault({{0, 2, 1}, {0}}, "decreases at row 1");
  expect_fault({{0, 1, 3}, {0, 1}}, "ends at 3");
  expect_fault({{0, 1, 2}, {0, 2}}, "column 2 at position 1");
  expect_fault({{0, 1, 2}, {-1, 0}}, "column -1 at position 0");
}

void metrics_follow_their_definition() {
  // Column 0 is read by row 1 (part 0) and rows 2 and 3 (part 1): it is sent once.
  const Graph graph{{0, 1, 2, 3, 5}, {0, 0, 0, 0, 1}};
  const std::vector<std::int32_t> part{0, 0, 1, 1};
  const Metrics metrics = measure(graph.view(), part, 3, {});
  CHECK(metrics.edge_cut == 3);
  CHECK(metrics.total_rows == 2);
  CHECK(metrics.max_send_rows == 2);
  CHECK(metrics.max_recv_rows == 2);
  CHECK(metrics.max_pair_rows == 2);
  CHECK(metrics.imbalance > 0.49 && metrics.imbalance < 0.51);
}

void a_heavy_node_alone_is_balanced() {
  const std::vector<std::int32_t> part{0, 1, 1};
  const Graph graph{{0, 0, 0, 0}, {}};
  const std::vector<std::int64_t> weights{10, 1, 1};
  CHECK(measure(graph.view(), part, 2, weights).imbalance == 0);
  CHECK(measure(graph.view(), part, 2, {}).imbalance == 0);
}

}  // namespace

int test_csr(int, char*[]) {
  malformed_patterns_are_refused();
  metrics_follow_their_definition();
  a_heavy_node_alone_is_balanced();
  return 0;
}
