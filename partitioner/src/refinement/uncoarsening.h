/// The way from the coarsest level to the input, with annealing at every level.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coarsening/hierarchy.h"
#include "random.h"
#include "refinement/potential.h"
#include "refinement/schedule.h"
#include "state/hypergraph.h"
#include "task.h"

namespace hpcgnn::volpart {

class Uncoarsening {
 public:
  /// @param[in] floor Score of the start that the result must keep.
  Uncoarsening(const Task& task, std::optional<Score> floor, Doublings doublings, Random random);

  /// Refine `part`, a partition of the coarsest level. The result is empty if no partition that
  /// keeps the floor was found.
  Candidate run(Hypergraph& graph, std::vector<Level> levels, std::vector<Part> part);
  /// The first half of run(): all coarse levels.
  std::vector<Part> climb(Hypergraph& graph, std::vector<Level> levels, std::vector<Part> part);
  /// The second half: the input itself.
  Candidate finish(Hypergraph& graph, std::vector<Part> part);

 private:
  void report(const Hypergraph& graph, const std::string& what) const;
  double temperature(int sweep, int sweeps) const;
  Steepness steepness(bool finest) const;
  Candidate anneal(const Hypergraph& graph, std::vector<Part> part, int sweeps, bool finest);

  const Task& _task;
  Schedule _schedule;
  std::optional<Score> _floor;
  Doublings _doublings;
  Random _random;
  double _heat = 1;  ///< Factor of temperatures at the current level.
};

}  // namespace hpcgnn::volpart
