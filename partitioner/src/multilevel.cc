#include "multilevel.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "annealing.h"
#include "coarsening.h"
#include "receive_bound.h"
#include "schedule.h"

namespace hpcgnn::volpart {
namespace {

constexpr Weight kClustersPerPart = 50;
constexpr Vertex kEnoughPerPart = 100;
constexpr double kLeastShrink = 1.1;

struct Level {
  Hypergraph graph;
  Clustering from_finer;
  std::vector<Weight> bounds;
};

std::vector<Part> to_coarse(const Clustering& clustering, std::span<const Part> part) {
  std::vector<Part> coarse(clustering.num_clusters);
  for (std::size_t v = 0; v < part.size(); ++v) coarse[clustering.cluster[v]] = part[v];
  return coarse;
}

std::vector<Part> to_fine(const Clustering& clustering, std::span<const Part> part) {
  std::vector<Part> fine;
  fine.reserve(clustering.cluster.size());
  for (const Vertex cluster : clustering.cluster) fine.push_back(part[cluster]);
  return fine;
}

std::vector<Weight> coarse_bounds(const Clustering& clustering, std::span<const Weight> bounds) {
  std::vector<Weight> coarse(clustering.num_clusters);
  for (std::size_t v = 0; v < bounds.size(); ++v) {
    Weight& bound = coarse[clustering.cluster[v]];
    bound = std::max(bound, bounds[v]);
  }
  return coarse;
}

/// Coarsen inside the parts of `part`, which ends as the same partition of the coarsest level.
std::vector<Level> coarsen(const Hypergraph& graph, std::span<const Weight> bounds,
                           std::vector<Part>& part, const Task& task, Random random) {
  std::vector<Level> levels;
  const int most = schedule_of(task.options.preset).max_levels;
  const Weight max_weight = graph.total_weight() / (kClustersPerPart * task.num_parts) + 1;
  const Hypergraph* last = &graph;
  while (static_cast<int>(levels.size()) < most && !task.deadline->passed() &&
         last->num_vertices() > kEnoughPerPart * static_cast<Vertex>(task.num_parts)) {
    Clustering clustering = cluster_vertices(*last, part, max_weight, random.fork());
    if (clustering.num_clusters * kLeastShrink > last->num_vertices()) break;
    part = to_coarse(clustering, part);
    Hypergraph coarse = contract(*last, clustering);
    std::vector<Weight> now = coarse_bounds(clustering, bounds);
    levels.push_back({std::move(coarse), std::move(clustering), std::move(now)});
    last = &levels.back().graph;
    bounds = levels.back().bounds;
  }
  return levels;
}

/// Anneal one level. At the finest, only partitions that keep `floor` count: the result is empty
/// where none was met.
Candidate anneal(const Hypergraph& graph, std::span<const Weight> bounds, std::vector<Part> part,
                 int sweeps, const Task& task, const Score& floor, bool finest, Random random) {
  const Schedule schedule = schedule_of(task.options.preset);
  State state(graph, task.num_parts, std::move(part));
  const Balance balance(state, task.options.imbalance);
  Potential potential(task.options.objective, task.num_parts, bounds, floor.busiest);
  Annealer annealer(state, balance, potential, *task.deadline, random);
  annealer.rebalance();
  Candidate best;
  const auto consider = [&] {
    const Score now = score(state, balance, task.options.objective);
    if (finest && !now.keeps(floor)) return;
    if (best.part.empty() || now.improves(best.score))
      best = {{state.parts().begin(), state.parts().end()}, now};
  };
  consider();
  for (int sweep = 0; sweep < sweeps && !task.deadline->passed(); ++sweep) {
    const double cooled = sweeps > 1 ? static_cast<double>(sweep) / (sweeps - 1) : 1;
    annealer.sweep(schedule.hot * std::pow(schedule.cold / schedule.hot, cooled),
                   schedule.proposals);
    consider();
  }
  return best;
}

Score score_of(const Hypergraph& graph, const std::vector<Part>& part, const Task& task) {
  const State state(graph, task.num_parts, part);
  return score(state, Balance(state, task.options.imbalance), task.options.objective);
}

}  // namespace

Candidate refine(const Hypergraph& graph, const std::vector<Part>& start, const Task& task,
                 Random random) {
  const Score floor = score_of(graph, start, task);
  const Schedule schedule = schedule_of(task.options.preset);
  std::vector<Part> part = start;
  separate_heavy(graph.vertex_weight, task.num_parts, part);
  const std::vector<Weight> bounds = receive_bounds(graph, task.num_parts, task.options.imbalance);
  std::vector<Level> levels = coarsen(graph, bounds, part, task, random.fork());
  while (!levels.empty()) {
    const Level& level = levels.back();
    if (task.report) task.report(std::to_string(level.graph.num_vertices()) + " clusters");
    part = anneal(level.graph, level.bounds, std::move(part), schedule.coarse_sweeps, task, floor,
                  false, random.fork())
               .part;
    part = to_fine(level.from_finer, part);
    levels.pop_back();
  }
  if (task.report) task.report(std::to_string(graph.num_vertices()) + " nodes");
  Candidate found = anneal(graph, bounds, std::move(part), schedule.fine_sweeps, task, floor, true,
                           random.fork());
  return found.part.empty() ? Candidate{start, floor} : found;
}

}  // namespace hpcgnn::volpart
