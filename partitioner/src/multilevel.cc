#include "multilevel.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "annealing.h"
#include "hierarchy.h"
#include "receive_bound.h"
#include "recursive_bisection.h"
#include "schedule.h"

namespace hpcgnn::volpart {
namespace {

constexpr int kAllLevels = 64;
/// The last cycle prices the busiest parts more steeply, which evens out what is left.
constexpr int kDoublings = 5;
constexpr int kLastDoublings = 6;

/// One way up from the coarsest level to the input.
class Ascent {
 public:
  /// @param[in] floor Score of the start that the result must keep.
  Ascent(const Task& task, std::optional<Score> floor, int doublings, Random random)
      : _task(task),
        _schedule(schedule_of(task.options.preset)),
        _floor(floor),
        _steepness{doublings},
        _random(random) {
    if (floor) _steepness = {doublings, floor->busiest, floor->total};
  }

  /// Refine `part`, a partition of the coarsest level. The result is empty where no partition that
  /// keeps the floor was met.
  Candidate run(const Hypergraph& graph, std::span<const Rows> bounds, std::vector<Level> levels,
                std::vector<Part> part) {
    while (!levels.empty()) {
      const Level& level = levels.back();
      report(level.graph, "clusters");
      const double cluster_size = static_cast<double>(graph.num_vertices()) /
                                  static_cast<double>(level.graph.num_vertices());
      _heat = std::sqrt(cluster_size);
      part =
          anneal(level.graph, level.bounds, std::move(part), _schedule.coarse_sweeps, false).part;
      part = to_fine(level.from_finer, part);
      levels.pop_back();
      if (!levels.empty()) levels.back().graph.index_nets();
    }
    report(graph, "nodes");
    _heat = 1;
    return anneal(graph, bounds, std::move(part), _schedule.fine_sweeps, true);
  }

 private:
  void report(const Hypergraph& graph, const std::string& what) const {
    if (_task.report) _task.report("refining " + std::to_string(graph.num_vertices()) + " " + what);
  }
  double temperature(int sweep, int sweeps) const {
    const double cooled = sweeps > 1 ? static_cast<double>(sweep) / (sweeps - 1) : 1;
    return _heat * _schedule.hot * std::pow(_schedule.cold / _schedule.hot, cooled);
  }
  Candidate anneal(const Hypergraph& graph, std::span<const Rows> bounds, std::vector<Part> part,
                   int sweeps, bool finest);

  const Task& _task;
  Schedule _schedule;
  std::optional<Score> _floor;
  Steepness _steepness;
  Random _random;
  double _heat = 1;  ///< What temperatures are multiplied by at the present level.
};

Candidate Ascent::anneal(const Hypergraph& graph, std::span<const Rows> bounds,
                         std::vector<Part> part, int sweeps, bool finest) {
  const Objective objective = _task.options.objective;
  State state(graph, _task.num_parts, std::move(part));
  Balance balance(state, _task.options.imbalance);
  Potential potential(objective, _task.num_parts, bounds, _steepness);
  Annealer annealer(state, balance, potential, *_task.deadline, _random.fork());
  Candidate best;
  const auto consider = [&] {
    balance.loosen(0);
    const Score now = score(state, balance, objective);
    if (finest && _floor && !now.keeps(*_floor)) return;
    if (best.part.empty() || !finest || now.improves(best.score))
      best = {{state.parts().begin(), state.parts().end()}, now};
  };
  annealer.rebalance();
  consider();
  for (int sweep = 0; sweep < sweeps && !_task.deadline->passed(); ++sweep) {
    const double left = std::max(0.0, 1 - 2.0 * sweep / sweeps);
    balance.loosen(finest ? left * _schedule.fine_slack : _schedule.coarse_slack);
    annealer.rebalance();
    annealer.sweep(temperature(sweep, sweeps), _schedule.proposals);
    consider();
  }
  return best;
}

Score score_of(const Hypergraph& graph, const std::vector<Part>& part, const Task& task) {
  const State state(graph, task.num_parts, part);
  return score(state, Balance(state, task.options.imbalance), task.options.objective);
}

/// Nothing where receiving is not priced.
std::vector<Rows> bounds_of(const Hypergraph& graph, const Task& task) {
  const Objective objective = task.options.objective;
  if (objective == Objective::kTotal || objective == Objective::kMaxSend) return {};
  return receive_bounds(graph, task.num_parts, task.options.imbalance);
}

/// One V-cycle inside the parts of `start`.
Candidate cycle(const Hypergraph& graph, const Candidate& start, int doublings, const Task& task,
                Random random) {
  std::vector<Part> part = start.part;
  separate_heavy(graph.vertex_weight, task.num_parts, part);
  const std::vector<Rows> bounds = bounds_of(graph, task);
  const CoarseningLimits limits{schedule_of(task.options.preset).max_levels, task.num_parts};
  std::vector<Level> levels = coarsen(graph, bounds, part, limits, *task.deadline, random.fork());
  Candidate found = Ascent(task, start.score, doublings, random.fork())
                        .run(graph, bounds, std::move(levels), std::move(part));
  return found.part.empty() ? start : found;
}

/// The cycles that are left after `done` of them.
Candidate remaining_cycles(const Hypergraph& graph, Candidate found, int done, const Task& task,
                           Random random) {
  const int cycles = schedule_of(task.options.preset).cycles;
  for (; done < cycles && !task.deadline->passed(); ++done) {
    const bool last = done > 0 && done + 1 == cycles;
    found = cycle(graph, found, last ? kLastDoublings : kDoublings, task, random.fork());
  }
  return found;
}

}  // namespace

Candidate refine(const Hypergraph& graph, const std::vector<Part>& start, const Task& task,
                 Random random) {
  return remaining_cycles(graph, {start, score_of(graph, start, task)}, 0, task, random);
}

Candidate create(const Hypergraph& graph, const Task& task, Random random) {
  const std::vector<Rows> bounds = bounds_of(graph, task);
  std::vector<Part> part(graph.num_vertices());
  std::vector<Level> levels =
      coarsen(graph, bounds, part, {kAllLevels, task.num_parts}, *task.deadline, random.fork());
  const Hypergraph& coarsest = levels.empty() ? graph : levels.back().graph;
  part = recursive_bisection(coarsest, task.num_parts, random.fork());
  separate_heavy(coarsest.vertex_weight, task.num_parts, part);
  Candidate found = Ascent(task, {}, kDoublings, random.fork())
                        .run(graph, bounds, std::move(levels), std::move(part));
  return remaining_cycles(graph, std::move(found), 1, task, random.fork());
}

}  // namespace hpcgnn::volpart
