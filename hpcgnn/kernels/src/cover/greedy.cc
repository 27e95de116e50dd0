#include <algorithm>

#include "cover/graph.h"

namespace hpcgnn::kernels {
namespace {

/// The unfinished cover. `remaining` counts the uncovered entries of a vertex; the queue holds the
/// vertices whose count has come down to one, which happens only once.
class GreedyCover {
 public:
  explicit GreedyCover(CoverGraph& graph) : graph_(graph) {
    std::fill_n(graph.in_cover.get(), graph.num_vertices(), false);
    std::fill_n(graph.mate.get(), graph.num_vertices(), -1);
    for (std::int32_t v = 0; v < graph.num_vertices(); ++v) {
      graph.remaining[v] = graph.degree(v);
      largest_ = std::max(largest_, graph.remaining[v]);
      if (graph.remaining[v] == 1) graph.queue[tail_++] = v;
    }
  }

  std::int64_t run() {
    cover_single_entries();
    // Always taking the vertex with the most entries would need a priority queue; within a factor
    // of two of the most is as good, and needs none.
    std::int64_t least = 1;
    while (least <= largest_) least *= 2;
    for (; least >= 2; least /= 2)
      for (std::int32_t v = 0; v < graph_.num_vertices(); ++v)
        if (!graph_.in_cover[v] && graph_.remaining[v] >= least) {
          take(v);
          cover_single_entries();
        }
    return matched_;
  }

 private:
  void cover_single_entries() {
    while (head_ < tail_) {
      const std::int32_t v = graph_.queue[head_++];
      if (graph_.in_cover[v] || graph_.remaining[v] != 1) continue;
      const auto neighbours = graph_.neighbours(v);
      // Its last entry needs one of its two ends, and the other end may cover more entries.
      take(*std::find_if(neighbours.begin(), neighbours.end(),
                         [&](std::int32_t u) { return !graph_.in_cover[u]; }));
    }
  }

  void take(std::int32_t v) {
    match(v);
    graph_.in_cover[v] = true;
    for (const std::int32_t u : graph_.neighbours(v))
      if (--graph_.remaining[u] == 1) graph_.queue[tail_++] = u;
  }

  /// Match `v` if it and a neighbour are free. Every entry has a vertex in the cover, for which
  /// this was tried, so the matching is maximal.
  void match(std::int32_t v) {
    if (graph_.mate[v] >= 0) return;
    // A neighbour with few entries left has few other chances.
    std::int32_t best = -1;
    for (const std::int32_t u : graph_.neighbours(v))
      if (graph_.mate[u] < 0 && (best < 0 || graph_.remaining[u] < graph_.remaining[best]))
        best = u;
    if (best < 0) return;
    graph_.mate[v] = best;
    graph_.mate[best] = v;
    ++matched_;
  }

  CoverGraph& graph_;
  std::int64_t head_ = 0, tail_ = 0, matched_ = 0, largest_ = 0;
};

/// Remove, in [first, last), every vertex whose entries are covered by its neighbours.
void prune(CoverGraph& graph, std::int32_t first, std::int32_t last) {
  for (std::int32_t v = first; v < last; ++v) {
    const auto neighbours = graph.neighbours(v);
    const auto covered = [&](std::int32_t u) { return graph.in_cover[u]; };
    if (std::all_of(neighbours.begin(), neighbours.end(), covered)) graph.in_cover[v] = false;
  }
}

}  // namespace

std::int64_t cover_greedily(CoverGraph& graph) { return GreedyCover(graph).run(); }

void shrink_cover(CoverGraph& graph) {
  // Rows first, and columns where sizes are equal: fetching is preferred.
  prune(graph, graph.num_columns(), graph.num_vertices());
  prune(graph, 0, graph.num_columns());
  std::int64_t columns = 0;
  for (std::int32_t c = 0; c < graph.num_columns(); ++c) columns += graph.degree(c) > 0;
  const std::int64_t size =
      std::count(graph.in_cover.get(), graph.in_cover.get() + graph.num_vertices(), true);
  // One side alone is also a cover, and a joint exchange must never move more than that.
  const bool all_columns = columns <= std::min<std::int64_t>(size, graph.num_rows());
  if (!all_columns && size <= graph.num_rows()) return;
  for (std::int32_t v = 0; v < graph.num_vertices(); ++v)
    graph.in_cover[v] = v < graph.num_columns() ? all_columns && graph.degree(v) > 0 : !all_columns;
}

}  // namespace hpcgnn::kernels
