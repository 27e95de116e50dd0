#include "multilevel.h"

#include <utility>

#include "coarsening/hierarchy.h"
#include "initial/recursive_bisection.h"
#include "refinement/rebalancing.h"
#include "refinement/schedule.h"
#include "refinement/uncoarsening.h"

namespace hpcgnn::volpart {
namespace {

constexpr int kAllLevels = 64;

/// One V-cycle inside the parts of `start`.
Candidate v_cycle(Hypergraph& graph, const Candidate& start, Doublings doublings, const Task& task,
                  Random random) {
  std::vector<Part> part = start.part;
  separate_heavy(graph.vertex_weight, task.num_parts, part);

  // Step 1: Coarsen. No cluster crosses parts, so the coarsest level has the same partition.
  const Schedule schedule = schedule_of(task.options.preset);
  const CoarseningLimits limits{schedule.max_levels, task.num_parts, schedule.most_pins};
  std::vector<Level> levels = coarsen(graph, part, limits, *task.deadline, random.fork());

  // Step 2: Refine it, and uncoarsen to the input, refining at every level. The start is kept if no
  // partition with at least its objective was found.
  Uncoarsening up(task, start.score, doublings, random.fork());
  Candidate found = up.run(graph, std::move(levels), std::move(part));
  return found.part.empty() ? start : found;
}

/// The V-cycles after the first `done`.
Candidate v_cycles(Hypergraph& graph, Candidate found, int done, const Task& task, Random random) {
  const int cycles = schedule_of(task.options.preset).cycles;
  for (; done < cycles && !task.deadline->passed(); ++done)
    found = v_cycle(graph, found, doublings_of(done, cycles), task, random.fork());
  return found;
}

}  // namespace

Candidate create(Hypergraph& graph, const Task& task, Random random) {
  // Step 1: Coarsen as far as possible. All vertices are in part 0, so any two may join.
  std::vector<Part> part(graph.num_vertices());
  std::vector<Level> levels =
      coarsen(graph, part, {kAllLevels, task.num_parts}, *task.deadline, random.fork());

  // Step 2: Partition the coarsest level.
  const Hypergraph& coarsest = levels.empty() ? graph : levels.back().graph;
  part = recursive_bisection(coarsest, task.num_parts, random.fork());
  separate_heavy(coarsest.vertex_weight, task.num_parts, part);

  // Step 3: Uncoarsen to the input, refining at every level. There is no start whose objective the
  // result must keep.
  const Doublings doublings = doublings_of(0, schedule_of(task.options.preset).cycles);
  Uncoarsening up(task, {}, doublings, random.fork());
  Candidate found = up.run(graph, std::move(levels), std::move(part));

  // Step 4: Run the other cycles inside the parts of this first one.
  return v_cycles(graph, std::move(found), 1, task, random.fork());
}

Candidate refine(Hypergraph& graph, std::vector<Part> start, const Task& task, Random random) {
  // Step 1: Make the start keep the weight limits: cycles accept nothing worse than it.
  Candidate found = balanced(graph, std::move(start), task, random.fork());

  // Step 2: Run all cycles inside its parts.
  return v_cycles(graph, std::move(found), 0, task, random);
}

}  // namespace hpcgnn::volpart
