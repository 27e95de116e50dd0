#include "state/balance.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace hpcgnn::volpart {
namespace {

/// Limit of parts outside the share, so low that no vertex fits.
constexpr Weight kNoRoom = std::numeric_limits<Weight>::min() / 4;

}  // namespace

Balance::Balance(const State& state, double imbalance) {
  const Hypergraph& graph = state.graph();
  const auto num_parts = static_cast<std::size_t>(state.num_parts());
  const Weight total = state.total_weight();
  _average = total / static_cast<Weight>(num_parts);
  std::vector<double> reference(static_cast<std::size_t>(state.num_own()),
                                static_cast<double>(total) / static_cast<double>(num_parts));
  for (Vertex v = 0; v < graph.num_inside(); ++v) {
    double& heaviest = reference[state.part(v)];
    heaviest = std::max(heaviest, static_cast<double>(graph.vertex_weight[v]));
  }
  for (const double heaviest : reference)
    _limit.push_back(static_cast<Weight>((1 + imbalance) * heaviest));
  _limit.resize(num_parts, kNoRoom);
}

Weight Balance::total_excess(const State& state) const {
  Weight sum = 0;
  for (int p = 0; p < state.num_own(); ++p)
    sum += std::max<Weight>(0, excess(state, static_cast<Part>(p)));
  return sum;
}

void separate_heavy(std::span<const Weight> weights, int num_parts, std::span<Part> part) {
  const Weight average = std::accumulate(weights.begin(), weights.end(), Weight{0}) / num_parts;
  std::vector<Vertex> heavy;
  std::vector<Weight> load(static_cast<std::size_t>(num_parts));
  for (std::size_t v = 0; v < weights.size(); ++v) {
    load[part[v]] += weights[v];
    if (weights[v] > average) heavy.push_back(static_cast<Vertex>(v));
  }
  std::ranges::stable_sort(heavy, std::ranges::greater{}, [&](Vertex v) { return weights[v]; });
  std::vector<bool> taken(static_cast<std::size_t>(num_parts));
  std::vector<Vertex> crowded;
  for (const Vertex v : heavy) {
    if (taken[part[v]]) crowded.push_back(v);
    taken[part[v]] = true;
  }
  for (const Vertex v : crowded) {
    int lightest = -1;
    for (int p = 0; p < num_parts; ++p) {
      const auto at = static_cast<std::size_t>(p);
      if (!taken[at] && (lightest < 0 || load[at] < load[static_cast<std::size_t>(lightest)]))
        lightest = p;
    }
    if (lightest < 0) return;
    load[part[v]] -= weights[v];
    part[v] = static_cast<Part>(lightest);
    load[part[v]] += weights[v];
    taken[part[v]] = true;
  }
}

}  // namespace hpcgnn::volpart
