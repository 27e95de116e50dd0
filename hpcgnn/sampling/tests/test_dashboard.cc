// Pops against degrees, clean-ups, and hubs that do not fit.
#include <cmath>
#include <map>
#include <vector>

#include "dashboard.h"
#include "testing.h"

using namespace hpcgnn::sampling;
using hpcgnn::kernels::testing::check;

namespace {

/// Pop one node of a frontier of `degrees` and put it back, many times: chi-squared over degrees.
void test_pop_frequencies(const std::vector<std::int64_t>& degrees, double enlargement) {
  const auto walkers = static_cast<std::int64_t>(degrees.size());
  double sum = 0;
  for (const std::int64_t degree : degrees) sum += static_cast<double>(degree);
  Dashboard board(walkers, sum / static_cast<double>(walkers), enlargement);
  std::map<std::int32_t, std::size_t> who;
  const auto add = [&](std::size_t node) {
    const std::int32_t tile = board.add(degrees[node]);
    for (const auto& [from, to] : board.moved()) {
      who[to] = who.at(from);
      if (from != to) who.erase(from);
    }
    who[tile] = node;
  };
  for (std::size_t node = 0; node < degrees.size(); ++node) add(node);
  Draws draws(5, 7);
  const int pops = 40000;
  std::vector<int> seen(degrees.size(), 0);
  for (int i = 0; i < pops; ++i) {
    const std::int32_t tile = board.pop(draws);
    const std::size_t node = who.at(tile);
    who.erase(tile);
    ++seen[node];
    add(node);
  }
  check(board.num_truncated() == 0, "all slots fit");
  double statistic = 0;
  for (std::size_t node = 0; node < degrees.size(); ++node) {
    const double expected = pops * static_cast<double>(degrees[node]) / sum;
    statistic += (seen[node] - expected) * (seen[node] - expected) / expected;
  }
  const double freedom = static_cast<double>(degrees.size()) - 1;
  check(statistic <= freedom + 5 * std::sqrt(2 * freedom), "pops are proportional to degrees");
}

void test_clean_up_and_hub() {
  // Ever larger nodes need ever new slots, and then are hubs.
  Dashboard board(40, 4, 1.5);
  Draws draws(1, 1);
  for (int i = 0; i < 40; ++i) board.add(1);
  for (std::int64_t degree = 2; degree < 320; ++degree) {
    board.pop(draws);
    const std::int32_t tile = board.add(1 << degree / 40);
    check(tile >= 0 && tile < board.num_tiles(), "a tile has a number");
  }
  check(board.num_cleanups() > 0, "historical tiles were freed");
  for (int i = 0; i < 40; ++i) {
    board.pop(draws);
    board.add(std::int64_t{1} << 31);
  }
  check(board.num_truncated() > 0, "hubs share what units there are");
  check(board.size() == 40, "the frontier is full");
}

}  // namespace

int test_dashboard(int, char*[]) {
  test_clean_up_and_hub();
  std::vector<std::int64_t> skewed, equal(50, 1);
  for (std::int64_t i = 1; i <= 60; ++i) skewed.push_back(i % 7 == 0 ? 40 * i : i % 5 + 1);
  for (const double enlargement : {2.5, 6.0}) {
    test_pop_frequencies(equal, enlargement);
    test_pop_frequencies(skewed, enlargement);
    test_pop_frequencies({7}, enlargement);
  }
  return 0;
}
