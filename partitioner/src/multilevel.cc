#include "multilevel.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "annealing.h"
#include "hierarchy.h"
#include "recursive_bisection.h"
#include "schedule.h"

namespace hpcgnn::volpart {
namespace {

constexpr int kAllLevels = 64;

/// How steeply the busiest parts are priced. Where several cycles follow, the first one leaves them
/// time: a steep price on clusters buys balance with rows that finer levels cannot win back.
struct Doublings {
  int coarse, finest;
};
constexpr Doublings kOnly{5, 5}, kFirst{4, 4}, kLater{6, 7};

/// One way up from the coarsest level to the input.
class Ascent {
 public:
  /// @param[in] floor Score of the start that the result must keep.
  Ascent(const Task& task, std::optional<Score> floor, Doublings doublings, Random random)
      : _task(task),
        _schedule(schedule_of(task.options.preset)),
        _floor(floor),
        _doublings(doublings),
        _random(random) {}

  /// Refine `part`, a partition of the coarsest level. The result is empty where no partition that
  /// keeps the floor was met.
  Candidate run(const Hypergraph& graph, std::vector<Level> levels, std::vector<Part> part) {
    while (!levels.empty()) {
      const Level& level = levels.back();
      report(level.graph, "clusters");
      const double cluster_size = static_cast<double>(graph.num_vertices()) /
                                  static_cast<double>(level.graph.num_vertices());
      _heat = std::sqrt(cluster_size);
      part = anneal(level.graph, std::move(part), _schedule.coarse_sweeps, false).part;
      part = to_fine(level.from_finer, part);
      levels.pop_back();
      if (!levels.empty()) levels.back().graph.index_nets();
    }
    report(graph, "nodes");
    _heat = 1;
    return anneal(graph, std::move(part), _schedule.fine_sweeps, true);
  }

 private:
  void report(const Hypergraph& graph, const std::string& what) const {
    if (_task.report) _task.report("refining " + std::to_string(graph.num_vertices()) + " " + what);
  }
  double temperature(int sweep, int sweeps) const {
    const double cooled = sweeps > 1 ? static_cast<double>(sweep) / (sweeps - 1) : 1;
    return _heat * _schedule.hot * std::pow(_schedule.cold / _schedule.hot, cooled);
  }
  Steepness steepness(bool finest) const {
    const int doublings = finest ? _doublings.finest : _doublings.coarse;
    return _floor ? Steepness{doublings, _floor->busiest, _floor->total} : Steepness{doublings};
  }
  Candidate anneal(const Hypergraph& graph, std::vector<Part> part, int sweeps, bool finest);

  const Task& _task;
  Schedule _schedule;
  std::optional<Score> _floor;
  Doublings _doublings;
  Random _random;
  double _heat = 1;  ///< What temperatures are multiplied by at the present level.
};

Candidate Ascent::anneal(const Hypergraph& graph, std::vector<Part> part, int sweeps, bool finest) {
  const Objective objective = _task.options.objective;
  State state(graph, _task.num_parts, std::move(part));
  Balance balance(state, _task.options.imbalance);
  Potential potential(objective, _task.num_parts, _task.receive_bound, steepness(finest));
  Annealer annealer(state, balance, potential, *_task.deadline, _random.fork());
  Candidate best;
  const auto consider = [&] {
    balance.loosen(0);
    const Score now = score(state, balance, objective);
    if (finest && _floor && !now.keeps(*_floor)) return;
    if (best.part.empty() || !finest || now.improves(best.score))
      best = {{state.parts().begin(), state.parts().end()}, now};
  };
  const auto settle = [&](double slack) {
    balance.loosen(slack);
    annealer.rebalance();
  };
  const double slack = finest ? _schedule.fine_slack : _schedule.coarse_slack;
  settle(slack);
  consider();
  for (int sweep = 0; sweep < sweeps && !_task.deadline->passed(); ++sweep) {
    settle(finest ? std::max(0.0, 1 - 2.0 * sweep / sweeps) * slack : slack);
    annealer.sweep(temperature(sweep, sweeps), _schedule.proposals);
    consider();
  }
  if (finest && _task.deadline->passed()) {
    settle(0);
    consider();
  }
  return best;
}

Score score_of(const Hypergraph& graph, const std::vector<Part>& part, const Task& task) {
  const State state(graph, task.num_parts, part);
  return score(state, Balance(state, task.options.imbalance), task.options.objective);
}

/// `start` itself where it keeps the weight limits; else what the cheapest moves make of it.
Candidate balanced(const Hypergraph& graph, std::vector<Part> start, const Task& task,
                   Random random) {
  const Objective objective = task.options.objective;
  const Score before = score_of(graph, start, task);
  if (before.excess == 0) return {std::move(start), before};
  separate_heavy(graph.vertex_weight, task.num_parts, start);
  State state(graph, task.num_parts, std::move(start));
  const Balance balance(state, task.options.imbalance);
  Potential potential(objective, task.num_parts, task.receive_bound,
                      {kOnly.finest, before.busiest, before.total});
  Annealer(state, balance, potential, *task.deadline, random).rebalance();
  return {{state.parts().begin(), state.parts().end()}, score(state, balance, objective)};
}

/// One V-cycle inside the parts of `start`.
Candidate cycle(const Hypergraph& graph, const Candidate& start, Doublings doublings,
                const Task& task, Random random) {
  std::vector<Part> part = start.part;
  separate_heavy(graph.vertex_weight, task.num_parts, part);
  const CoarseningLimits limits{schedule_of(task.options.preset).max_levels, task.num_parts};
  std::vector<Level> levels = coarsen(graph, part, limits, *task.deadline, random.fork());
  Candidate found = Ascent(task, start.score, doublings, random.fork())
                        .run(graph, std::move(levels), std::move(part));
  return found.part.empty() ? start : found;
}

Doublings doublings_of(int cycle, int cycles) {
  if (cycles == 1) return kOnly;
  return cycle == 0 ? kFirst : kLater;
}

/// The cycles that are left after `done` of them.
Candidate remaining_cycles(const Hypergraph& graph, Candidate found, int done, const Task& task,
                           Random random) {
  const int cycles = schedule_of(task.options.preset).cycles;
  for (; done < cycles && !task.deadline->passed(); ++done)
    found = cycle(graph, found, doublings_of(done, cycles), task, random.fork());
  return found;
}

}  // namespace

Candidate refine(const Hypergraph& graph, std::vector<Part> start, const Task& task,
                 Random random) {
  Candidate found = balanced(graph, std::move(start), task, random.fork());
  return remaining_cycles(graph, std::move(found), 0, task, random);
}

Candidate create(const Hypergraph& graph, const Task& task, Random random) {
  std::vector<Part> part(graph.num_vertices());
  std::vector<Level> levels =
      coarsen(graph, part, {kAllLevels, task.num_parts}, *task.deadline, random.fork());
  const Hypergraph& coarsest = levels.empty() ? graph : levels.back().graph;
  part = recursive_bisection(coarsest, task.num_parts, random.fork());
  separate_heavy(coarsest.vertex_weight, task.num_parts, part);
  const Doublings doublings = doublings_of(0, schedule_of(task.options.preset).cycles);
  Candidate found =
      Ascent(task, {}, doublings, random.fork()).run(graph, std::move(levels), std::move(part));
  return remaining_cycles(graph, std::move(found), 1, task, random.fork());
}

}  // namespace hpcgnn::volpart
