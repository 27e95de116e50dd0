#include "cover_degree.h"

#include <algorithm>
#include <numeric>

namespace hpcgnn::kernels {
namespace {

/// The cover under way. `remaining` counts the uncovered entries of a vertex; the queue holds the
/// vertices that have come down to one, which each does only once.
class DegreeCover {
 public:
  explicit DegreeCover(CoverGraph& graph) : graph_(graph) {
    std::fill_n(graph.in_cover.get(), graph.num_vertices(), false);
    for (std::int32_t v = 0; v < graph.num_vertices(); ++v) {
      graph.remaining[v] = graph.degree(v);
      if (graph.remaining[v] == 1) graph.queue[tail_++] = v;
    }
  }

  void cover_single_entries() {
    while (head_ < tail_) {
      const std::int32_t v = graph_.queue[head_++];
      if (graph_.in_cover[v] || graph_.remaining[v] != 1) continue;
      for (const std::int32_t u : graph_.neighbours(v))
        if (!graph_.in_cover[u]) take(u);
    }
  }

  void take(std::int32_t v) {
    if (graph_.in_cover[v] || graph_.remaining[v] == 0) return;
    graph_.in_cover[v] = true;
    for (const std::int32_t u : graph_.neighbours(v))
      if (!graph_.in_cover[u] && --graph_.remaining[u] == 1) graph_.queue[tail_++] = u;
  }

  /// Take out, in [first, last), every vertex whose entries its neighbours cover.
  void prune(std::int32_t first, std::int32_t last) {
    for (std::int32_t v = first; v < last; ++v) {
      const auto neighbours = graph_.neighbours(v);
      graph_.in_cover[v] &= !std::all_of(neighbours.begin(), neighbours.end(),
                                         [&](std::int32_t u) { return graph_.in_cover[u]; });
    }
  }

 private:
  CoverGraph& graph_;
  std::int64_t head_ = 0, tail_ = 0;
};

/// Sort the vertices by descending degree into `graph.mate`, which no matching needs any more.
void sort_by_degree(CoverGraph& graph) {
  std::int32_t* const order = graph.mate.get();
  std::iota(order, order + graph.num_vertices(), 0);
  std::sort(order, order + graph.num_vertices(), [&](std::int32_t u, std::int32_t v) {
    return graph.degree(u) != graph.degree(v) ? graph.degree(u) > graph.degree(v) : u < v;
  });
}

/// Replace the cover by all columns or all rows if that is smaller, or by columns if it is equal.
void keep_best(CoverGraph& graph) {
  std::int64_t columns = 0;
  for (std::int32_t c = 0; c < graph.num_columns(); ++c) columns += graph.degree(c) > 0;
  const std::int64_t size =
      std::count(graph.in_cover.get(), graph.in_cover.get() + graph.num_vertices(), true);
  const bool all_columns = columns <= std::min<std::int64_t>(size, graph.num_rows());
  if (!all_columns && size <= graph.num_rows()) return;
  for (std::int32_t v = 0; v < graph.num_vertices(); ++v)
    graph.in_cover[v] = v < graph.num_columns() ? all_columns && graph.degree(v) > 0 : !all_columns;
}

}  // namespace

void cover_by_degree(CoverGraph& graph) {
  DegreeCover cover(graph);
  sort_by_degree(graph);
  cover.cover_single_entries();
  for (std::int32_t i = 0; i < graph.num_vertices(); ++i) {
    cover.take(graph.mate[i]);
    cover.cover_single_entries();
  }
  // Rows first: of equal covers the one with more columns is wanted.
  cover.prune(graph.num_columns(), graph.num_vertices());
  cover.prune(0, graph.num_columns());
  keep_best(graph);
}

}  // namespace hpcgnn::kernels
