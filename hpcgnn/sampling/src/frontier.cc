#include "frontier.h"

#include <algorithm>
#include <array>
#include <utility>

#include "dashboard.h"

namespace hpcgnn::sampling {
namespace {

/// The nodes behind the tiles, and where their walkers go next.
///
/// A walker draws its next node as it arrives, not as it leaves. That is the same distribution, and
/// the memory it will read is on its way while the other walkers move.
class Walkers {
 public:
  Walkers(const Graph& graph, Dashboard& dashboard) : graph_(graph), dashboard_(dashboard) {}

  void arrive(std::int32_t node, Draws& draws) {
    const std::int64_t begin = graph_.indptr[node], degree = graph_.degree(node);
    if (degree == 0) return;
    const std::int32_t tile = dashboard_.add(degree);
    for (const auto& [from, to] : dashboard_.moved()) at(to) = at(from);
    places_.resize(static_cast<std::size_t>(dashboard_.num_tiles()));
    const std::int64_t next = begin + draws.below(degree);
    at(tile) = {next, node};
    prefetch(graph_.indices + next);
    prefetch_degree(std::exchange(recent_[turn_], next));
    turn_ = (turn_ + 1) % recent_.size();
  }

  /// The node that the walker of a tile is on, and the one it goes to.
  std::pair<std::int32_t, std::int32_t> leave(std::int32_t tile) {
    return {at(tile).node, graph_.indices[at(tile).next]};
  }

 private:
  struct Place {
    std::int64_t next = 0;  ///< an entry of the graph
    std::int32_t node = 0;
  };

  Place& at(std::int32_t tile) { return places_[static_cast<std::size_t>(tile)]; }

  /// The entry was asked for some arrivals ago, so reading it does not wait.
  void prefetch_degree(std::int64_t entry) const {
    prefetch(graph_.indptr + graph_.indices[entry]);
  }

  const Graph& graph_;
  Dashboard& dashboard_;
  std::vector<Place> places_;
  std::array<std::int64_t, 8> recent_{};
  std::size_t turn_ = 0;
};

}  // namespace

FrontierCounts sample_frontier(const Graph& graph, const Frontier& frontier, Draws draws,
                               std::vector<std::int32_t>& visits) {
  if (graph.num_nodes == 0 || frontier.num_walkers == 0) return {0, 0};
  const double mean_degree =
      static_cast<double>(graph.num_entries()) / static_cast<double>(graph.num_nodes);
  Dashboard dashboard(frontier.num_walkers, mean_degree, frontier.enlargement);
  Walkers walkers(graph, dashboard);
  const std::size_t first = visits.size();
  visits.reserve(first + static_cast<std::size_t>(frontier.num_walkers + frontier.num_pops));
  for (std::int64_t i = 0; i < frontier.num_walkers; ++i) {
    visits.push_back(static_cast<std::int32_t>(draws.below(graph.num_nodes)));
    prefetch(graph.indptr + visits.back());
  }
  for (std::int64_t i = 0; i < frontier.num_walkers; ++i)
    walkers.arrive(visits[first + static_cast<std::size_t>(i)], draws);
  for (std::int64_t i = 0; i < frontier.num_pops && dashboard.size() > 0; ++i) {
    const auto [left, reached] = walkers.leave(dashboard.pop(draws));
    visits.push_back(frontier.entered ? reached : left);
    walkers.arrive(reached, draws);
  }
  return {dashboard.num_cleanups(), dashboard.num_truncated()};
}

}  // namespace hpcgnn::sampling
