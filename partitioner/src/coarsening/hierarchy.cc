#include "coarsening/hierarchy.h"

#include <utility>

#include "deadline.h"

namespace hpcgnn::volpart {
namespace {

constexpr Weight kClustersPerPart = 12;
constexpr Vertex kEnoughPerPart = 25;

bool is_there(const Level& level) { return !level.graph.pins_begin.empty(); }

/// Free the second-coarsest level if it takes much memory.
void make_small(const Hypergraph& graph, std::vector<Level>& levels) {
  if (levels.size() < 2) return;
  Hypergraph& last = levels[levels.size() - 2].graph;
  std::size_t kept = graph.num_pins();
  for (std::size_t k = 0; k + 2 < levels.size(); ++k)
    if (is_there(levels[k])) kept = levels[k].graph.num_pins();
  if (2 * last.num_pins() > kept) last = {};
}

std::vector<Part> to_coarse(const Clustering& clustering, std::span<const Part> part) {
  std::vector<Part> coarse(clustering.num_clusters);
  for (std::size_t v = 0; v < part.size(); ++v) coarse[clustering.cluster[v]] = part[v];
  return coarse;
}

}  // namespace

std::vector<Level> coarsen(Hypergraph& graph, std::vector<Part>& part,
                           const CoarseningLimits& limits, const Deadline& deadline,
                           Random random) {
  std::vector<Level> levels;
  const Weight max_weight = graph.total_weight() / (kClustersPerPart * limits.num_parts) + 1;
  const auto enough = kEnoughPerPart * static_cast<Vertex>(limits.num_parts);
  Hypergraph* last = &graph;
  while (static_cast<int>(levels.size()) < limits.max_levels && !deadline.passed() &&
         last->num_vertices() > enough) {
    Clustering clustering = cluster_vertices(*last, part, max_weight, random.fork());
    if (clustering.num_clusters * kLeastShrink > last->num_vertices() ||
        kept_pins(*last, clustering) > limits.most_pins)
      break;
    part = to_coarse(clustering, part);
    // Memory peaks in contraction: free what it does not need before, and the rest right after.
    if (!levels.empty()) last->drop_index();
    Hypergraph coarse = contract(*last, clustering);
    levels.push_back({std::move(coarse), std::move(clustering)});
    graph.drop_pins();
    make_small(graph, levels);
    last = &levels.back().graph;
    last->index_nets();
  }
  return levels;
}

void restore_last(Hypergraph& graph, std::vector<Level>& levels) {
  if (levels.empty()) return;
  Hypergraph& restored = levels.back().graph;
  if (!is_there(levels.back())) {
    // One contraction leads from the last stored graph to this one.
    Clustering all = levels.back().from_finer;
    std::size_t finer = levels.size() - 1;
    for (; finer > 0 && !is_there(levels[finer - 1]); --finer) {
      std::vector<Vertex> cluster = levels[finer - 1].from_finer.cluster;
      for (Vertex& at : cluster) at = all.cluster[at];
      all.cluster = std::move(cluster);
    }
    if (finer == 0 && !graph.has_pins()) graph.index_pins();
    restored = contract(finer > 0 ? levels[finer - 1].graph : graph, all);
    graph.drop_pins();
  }
  restored.index_nets();
}

std::vector<Part> to_fine(const Clustering& clustering, std::span<const Part> part) {
  std::vector<Part> fine;
  fine.reserve(clustering.cluster.size());
  for (const Vertex cluster : clustering.cluster) fine.push_back(part[cluster]);
  return fine;
}

}  // namespace hpcgnn::volpart
