#include "refinement/uncoarsening.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "refinement/annealing.h"

namespace hpcgnn::volpart {

Uncoarsening::Uncoarsening(const Task& task, std::optional<Score> floor, Doublings doublings,
                           Random random)
    : _task(task),
      _schedule(schedule_of(task.options.preset)),
      _floor(floor),
      _doublings(doublings),
      _random(random) {}

Candidate Uncoarsening::run(Hypergraph& graph, std::vector<Level> levels, std::vector<Part> part) {
  part = climb(graph, std::move(levels), std::move(part));
  return finish(graph, std::move(part));
}

std::vector<Part> Uncoarsening::climb(Hypergraph& graph, std::vector<Level> levels,
                                      std::vector<Part> part) {
  while (!levels.empty()) {
    const Level& level = levels.back();
    report(level.graph, "clusters");
    const double cluster_size =
        static_cast<double>(graph.num_vertices()) / static_cast<double>(level.graph.num_vertices());
    _heat = std::sqrt(cluster_size);
    part = anneal(level.graph, std::move(part), _schedule.coarse_sweeps, false).part;
    part = to_fine(level.from_finer, part);
    levels.pop_back();
    restore_last(graph, levels);
  }
  return part;
}

Candidate Uncoarsening::finish(Hypergraph& graph, std::vector<Part> part) {
  if (!graph.has_pins()) graph.index_pins();
  report(graph, "nodes");
  _heat = 1;
  return anneal(graph, std::move(part), _schedule.fine_sweeps, true);
}

/// Simulated annealing with falling temperature and, at the input, falling slack of the limits.
Candidate Uncoarsening::anneal(const Hypergraph& graph, std::vector<Part> part, int sweeps,
                               bool finest) {
  const Objective objective = _task.options.objective;
  State state(graph, _task.num_parts, std::move(part), _task.around);
  Balance balance(state, _task.options.imbalance);
  Potential potential(objective, _task.num_parts, _task.receive_bound, steepness(finest));
  Annealer annealer(state, balance, potential, *_task.deadline, _random.fork());
  Candidate best;
  const auto consider = [&] {
    // The true limits decide which partition is better, independently of the sweep's slack.
    balance.loosen(0);
    const Score now = score(state, balance, objective);
    // Only the loads of all shares together show whether their simultaneous moves were good, so a
    // share cannot decide alone whether to keep its last state.
    const bool takes_last = !finest || _task.around;
    if (!takes_last && _floor && !now.keeps(*_floor)) return;
    // A coarse level passes on its last state, the input its best one: scores on clusters do not
    // yet predict the result of finer levels.
    if (best.part.empty() || takes_last || now.improves(best.score))
      best = {{state.parts().begin(), state.parts().end()}, now};
  };
  const auto settle = [&](double slack) {
    balance.loosen(slack);
    annealer.rebalance();
  };
  const double slack = finest ? _schedule.fine_slack : _schedule.coarse_slack;

  // Step 1: Repair parts that coarse moves left too heavy; the start is a candidate too.
  settle(slack);
  consider();

  // Step 2: Sweep over the boundary with falling temperature. Slack allows intermediate partitions
  // that are too heavy; it ends halfway, so the last sweeps end within the limits.
  for (int sweep = 0; sweep < sweeps && !_task.deadline->passed(); ++sweep) {
    settle(finest ? std::max(0.0, 1 - 2.0 * sweep / sweeps) * slack : slack);
    for (int pass = 0; pass < _schedule.passes; ++pass)
      annealer.sweep(temperature(sweep, sweeps), _schedule.proposals);
    consider();
  }

  // Step 3: Repair again, as the deadline may have passed while there still was slack.
  if (finest && _task.deadline->passed()) {
    settle(0);
    consider();
  }
  // The other shares continue from the final loads of this one.
  state.exchange_loads();
  return best;
}

/// Geometric cooling, from `hot` in the first sweep to `cold` in the last.
double Uncoarsening::temperature(int sweep, int sweeps) const {
  const double cooled = sweeps > 1 ? static_cast<double>(sweep) / (sweeps - 1) : 1;
  return _heat * _schedule.hot * std::pow(_schedule.cold / _schedule.hot, cooled);
}

Steepness Uncoarsening::steepness(bool finest) const {
  const int doublings = finest ? _doublings.finest : _doublings.coarse;
  return _floor ? Steepness{doublings, _floor->busiest, _floor->total} : Steepness{doublings};
}

void Uncoarsening::report(const Hypergraph& graph, const std::string& what) const {
  if (_task.report) _task.report("refining " + std::to_string(graph.num_vertices()) + " " + what);
}

}  // namespace hpcgnn::volpart
