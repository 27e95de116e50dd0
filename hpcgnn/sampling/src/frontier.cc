#include "frontier.h"

#include <algorithm>
#include <array>
#include <utility>

#include "dashboard.h"

namespace hpcgnn::sampling {
namespace {

double mean_degree(const Graph& graph) {
  return static_cast<double>(graph.num_entries()) / static_cast<double>(graph.num_nodes);
}

/// The frontier of one subgraph.
///
/// A walker draws its next node as it arrives, not as it leaves. The distribution is the same, and
/// memory is prefetched while the other walkers move. A move has three steps, each of which
/// prefetches the memory that the next one reads, and the moves of several frontiers interleave.
class Walkers {
 public:
  Walkers(const Graph& graph, const Frontier& frontier, Draws draws,
          std::vector<std::int32_t>& visits)
      : graph_(graph),
        dashboard_(frontier.num_walkers, mean_degree(graph), frontier.enlargement),
        draws_(draws),
        visits_(visits),
        pops_left_(frontier.num_pops),
        entered_(frontier.entered) {
    const std::size_t first = visits.size();
    visits.reserve(first + static_cast<std::size_t>(frontier.num_walkers + frontier.num_pops));
    for (std::int64_t i = 0; i < frontier.num_walkers; ++i) {
      visits.push_back(static_cast<std::int32_t>(draws_.below(graph.num_roots)));
      prefetch(graph.indptr + visits.back());
    }
    for (std::int64_t i = 0; i < frontier.num_walkers; ++i)
      arrive(visits[first + static_cast<std::size_t>(i)]);
  }

  bool done() const { return pops_left_ == 0 || dashboard_.size() == 0; }

  /// Choose the walker to move. @pre not done().
  void leave() {
    --pops_left_;
    moving_ = at(dashboard_.pop(draws_));
    prefetch(graph_.indices + moving_.next);
  }

  /// Follow its edge.
  void follow() {
    reached_ = graph_.indices[moving_.next];
    prefetch(graph_.indptr + reached_);
    visits_.push_back(entered_ ? reached_ : moving_.node);
  }

  /// Put it into the frontier again.
  void arrive() { arrive(reached_); }

  FrontierCounts counts() const {
    return {dashboard_.num_cleanups(), dashboard_.num_truncated(), dashboard_.num_probes()};
  }

 private:
  struct Place {
    std::int64_t next = 0;  ///< an entry of the graph
    std::int32_t node = 0;
  };

  Place& at(std::int32_t tile) { return places_[static_cast<std::size_t>(tile)]; }

  void arrive(std::int32_t node) {
    const std::int64_t begin = graph_.indptr[node], degree = graph_.degree(node);
    if (degree == 0) return;
    const std::int32_t tile = dashboard_.add(degree);
    for (const auto& [from, to] : dashboard_.moved()) at(to) = at(from);
    places_.resize(static_cast<std::size_t>(dashboard_.num_tiles()));
    const std::int64_t next = begin + draws_.below(degree);
    at(tile) = {next, node};
    prefetch(graph_.indices + next);
    prefetch_degree(std::exchange(recent_[turn_], next));
    turn_ = (turn_ + 1) % recent_.size();
  }

  /// The entry was prefetched some arrivals ago, so reading it does not wait.
  void prefetch_degree(std::int64_t entry) const {
    prefetch(graph_.indptr + graph_.indices[entry]);
  }

  const Graph& graph_;
  Dashboard dashboard_;
  Draws draws_;
  std::vector<std::int32_t>& visits_;
  std::int64_t pops_left_;
  bool entered_;
  std::vector<Place> places_;
  Place moving_;
  std::int32_t reached_ = 0;
  std::array<std::int64_t, 8> recent_{};
  std::size_t turn_ = 0;
};

/// Make all moves of all frontiers, one moving while the others wait for memory.
void move_in_turn(std::vector<Walkers>& frontiers) {
  const std::size_t count = frontiers.size(), half = (count + 1) / 2;
  enum class Step { kLeave, kFollow, kArrive, kDone };
  std::vector<Step> steps(count, Step::kLeave);
  const auto follow = [&](std::size_t i) {
    if (steps[i] != Step::kFollow) return;
    frontiers[i].follow();
    steps[i] = Step::kArrive;
  };
  const auto move = [&](std::size_t i) {
    if (steps[i] == Step::kArrive) frontiers[i].arrive();
    steps[i] = frontiers[i].done() ? Step::kDone : Step::kFollow;
    if (steps[i] == Step::kFollow) frontiers[i].leave();
    return steps[i] != Step::kDone;
  };
  for (bool any = true; any;) {
    any = false;
    for (std::size_t i = 0; i < count; ++i) {
      any |= move(i);
      // Half a round after its walker left, half a round before it arrives.
      follow(i + half < count ? i + half : i + half - count);
    }
  }
}

}  // namespace

FrontierCounts sample_frontiers(const Graph& graph, const Frontier& frontier, std::uint64_t seed,
                                const std::vector<std::int64_t>& numbers,
                                std::vector<std::vector<std::int32_t>>& visits) {
  visits.resize(numbers.size());
  FrontierCounts counts{};
  if (graph.num_roots == 0 || frontier.num_walkers == 0) return counts;
  std::vector<Walkers> frontiers;
  frontiers.reserve(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i)
    frontiers.emplace_back(graph, frontier, Draws{seed, numbers[i]}, visits[i]);
  move_in_turn(frontiers);
  for (const auto& each : frontiers) {
    counts.cleanups += each.counts().cleanups;
    counts.truncated += each.counts().truncated;
    counts.probes += each.counts().probes;
  }
  return counts;
}

}  // namespace hpcgnn::sampling
