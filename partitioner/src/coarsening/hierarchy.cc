#include "coarsening/hierarchy.h"

#include <utility>

#include "deadline.h"

namespace hpcgnn::volpart {
namespace {

constexpr Weight kClustersPerPart = 12;
constexpr Vertex kEnoughPerPart = 25;
constexpr double kLeastShrink = 1.1;

std::vector<Part> to_coarse(const Clustering& clustering, std::span<const Part> part) {
  std::vector<Part> coarse(clustering.num_clusters);
  for (std::size_t v = 0; v < part.size(); ++v) coarse[clustering.cluster[v]] = part[v];
  return coarse;
}

}  // namespace

std::vector<Level> coarsen(const Hypergraph& graph, std::vector<Part>& part,
                           const CoarseningLimits& limits, const Deadline& deadline,
                           Random random) {
  std::vector<Level> levels;
  const Weight max_weight = graph.total_weight() / (kClustersPerPart * limits.num_parts) + 1;
  const auto enough = kEnoughPerPart * static_cast<Vertex>(limits.num_parts);
  const Hypergraph* last = &graph;
  while (static_cast<int>(levels.size()) < limits.max_levels && !deadline.passed() &&
         last->num_vertices() > enough) {
    Clustering clustering = cluster_vertices(*last, part, max_weight, random.fork());
    if (clustering.num_clusters * kLeastShrink > last->num_vertices()) break;
    part = to_coarse(clustering, part);
    Hypergraph coarse = contract(*last, clustering);
    if (!levels.empty()) levels.back().graph.drop_index();
    levels.push_back({std::move(coarse), std::move(clustering)});
    last = &levels.back().graph;
  }
  return levels;
}

std::vector<Part> to_fine(const Clustering& clustering, std::span<const Part> part) {
  std::vector<Part> fine;
  fine.reserve(clustering.cluster.size());
  for (const Vertex cluster : clustering.cluster) fine.push_back(part[cluster]);
  return fine;
}

}  // namespace hpcgnn::volpart
