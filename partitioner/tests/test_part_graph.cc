#include <algorithm>
#include <stdexcept>

#include "initial/recursive_bisection.h"
#include "support.h"
#include "volpart/part_graph.h"

using namespace hpcgnn::volpart;
using namespace hpcgnn::volpart::testing;

namespace {

constexpr Objective kObjectives[] = {Objective::kTotal, Objective::kMaxSend, Objective::kMaxRecv,
                                     Objective::kMaxBoth, Objective::kJoint};

std::int64_t busiest(const Metrics& metrics, Objective objective) {
  switch (objective) {
    case Objective::kTotal:
      return metrics.total_rows;
    case Objective::kMaxSend:
      return metrics.max_send_rows;
    case Objective::kMaxRecv:
      return metrics.max_recv_rows;
    default:
      return std::max(metrics.max_send_rows, metrics.max_recv_rows);
  }
}

void better_than_a_random_start(Objective objective, Preset preset, int threads) {
  const Graph input = random_graph(600, 6, 13);
  const int num_parts = 5;
  const auto start = random_parts<std::int32_t>(600, num_parts, 14);
  const Options options{objective, preset, 0.05, 15, threads};
  const Result result =
      part_graph(input.view(), num_parts, {}, {{"random", start}}, options, nullptr);
  CHECK(result.winner == "random" && result.part.size() == start.size());
  CHECK(result.metrics.imbalance < 0.06);
  const Metrics before = measure(input.view(), start, num_parts, {});
  CHECK(result.metrics.total_rows == measure(input.view(), result.part, num_parts, {}).total_rows);
  if (objective != Objective::kJoint)
    CHECK(busiest(result.metrics, objective) < busiest(before, objective));
  const Result again =
      part_graph(input.view(), num_parts, {}, {{"random", start}}, options, nullptr);
  CHECK(again.part == result.part);
}

void the_best_start_wins() {
  const Graph input = ring(400);
  std::vector<std::int32_t> good, bad(400, 3);
  for (int v = 0; v < 400; ++v) good.push_back(v / 100);
  const Options options{Objective::kMaxBoth, Preset::kFast, 0.05, 1, 1};
  const Result result =
      part_graph(input.view(), 4, {}, {{"bad", bad}, {"good", good}}, options, nullptr);
  CHECK(result.winner == "good");
  CHECK(result.metrics.max_send_rows == 2 && result.metrics.total_rows == 8);
}

void a_start_is_made_where_none_is_given() {
  const Graph input = random_graph(2000, 6, 17);
  const Options options{Objective::kMaxBoth, Preset::kDefault, 0.05, 1, 1};
  const auto noise = random_parts<std::int32_t>(2000, 9, 18);
  const Result result = part_graph(input.view(), 9, {}, {{"own", {}}}, options, nullptr);
  CHECK(result.winner == "own" && result.metrics.imbalance < 0.06);
  CHECK(result.metrics.total_rows < measure(input.view(), noise, 9, {}).total_rows);
  const Result in_no_time =
      part_graph(input.view(), 9, {}, {{"own", {}}},
                 {Objective::kMaxBoth, Preset::kDefault, 0.05, 1, 1, 0}, nullptr);
  CHECK(in_no_time.part.size() == 2000 && in_no_time.metrics.imbalance < 0.06);
}

void a_ring_is_bisected_into_arcs() {
  const Graph input = ring(64);
  const Hypergraph graph = fetch_hypergraph(input.view(), {});
  const std::vector<Part> part = recursive_bisection(graph, 4, Random(3));
  int cuts = 0;
  std::vector<int> size(4);
  for (std::size_t v = 0; v < 64; ++v) {
    cuts += part[v] != part[(v + 1) % 64];
    ++size[part[v]];
  }
  CHECK(cuts <= 8);
  for (const int members : size) CHECK(members >= 15 && members <= 17);
}

void no_time_returns_the_start() {
  const Graph input = ring(400);
  std::vector<std::int32_t> start;
  for (int v = 0; v < 400; ++v) start.push_back(v % 4);
  const Options options{Objective::kMaxBoth, Preset::kDefault, 0.05, 1, 1, 0};
  CHECK(part_graph(input.view(), 4, {}, {{"start", start}}, options, nullptr).part == start);
}

void tiny_inputs_work() {
  const Options options{Objective::kMaxBoth, Preset::kDefault, 0.05, 1, 2};
  const std::vector<std::int32_t> none, one{4};
  CHECK(part_graph(Graph{}.view(), 3, {}, {{"none", none}}, options, nullptr).part.empty());
  const Graph loop{{0, 2}, {0, 0}};
  CHECK(part_graph(loop.view(), 1024, {}, {{"one", one}}, options, nullptr).part.size() == 1);
}

template <class Call>
void expect_refusal(Call&& call) {
  try {
    call();
  } catch (const std::invalid_argument&) {
    return;
  }
  CHECK(false);
}

void wrong_arguments_are_refused() {
  const Graph input = ring(5);
  const std::vector<std::int32_t> start{0, 1, 0, 1, 0}, short_start{0}, outside{0, 1, 2, 0, 0};
  const std::vector<std::int64_t> negative{1, 1, -1, 1, 1};
  const auto run = [&](int num_parts, std::span<const std::int64_t> weights,
                       const std::vector<Start>& starts, const Options& options) {
    part_graph(input.view(), num_parts, weights, starts, options, nullptr);
  };
  expect_refusal([&] { run(0, {}, {{"a", start}}, {}); });
  expect_refusal([&] { run(kMaxParts + 1, {}, {{"a", start}}, {}); });
  expect_refusal([&] { run(2, negative, {{"a", start}}, {}); });
  expect_refusal([&] { run(2, {}, {{"a", short_start}}, {}); });
  expect_refusal([&] { run(2, {}, {{"a", outside}}, {}); });
  expect_refusal([&] { run(2, {}, {}, {}); });
  expect_refusal([&] { run(2, {}, {{"a", start}}, {.imbalance = -1}); });
  expect_refusal([&] { run(2, {}, {{"a", start}}, {.threads = 0}); });
}

void a_report_that_throws_ends_the_run() {
  const Graph input = ring(50);
  const std::vector<std::int32_t> start(50, 0);
  try {
    part_graph(input.view(), 2, {}, {{"a", start}}, {},
               [](const std::string&, double) { throw std::runtime_error("enough"); });
  } catch (const std::runtime_error&) {
    return;
  }
  CHECK(false);
}

}  // namespace

int test_part_graph(int, char*[]) {
  for (const Objective objective : kObjectives)
    better_than_a_random_start(objective, Preset::kDefault, 1);
  better_than_a_random_start(Objective::kMaxBoth, Preset::kFast, 1);
  better_than_a_random_start(Objective::kMaxSend, Preset::kDefault, 3);
  the_best_start_wins();
  a_start_is_made_where_none_is_given();
  a_ring_is_bisected_into_arcs();
  no_time_returns_the_start();
  tiny_inputs_work();
  wrong_arguments_are_refused();
  a_report_that_throws_ends_the_run();
  return 0;
}
