#include <algorithm>

#include "cover/graph.h"

namespace hpcgnn::kernels {
namespace {

/// Set the level of every column that is reached before or with the nearest free row: the number of
/// matched edges on a shortest alternating path from a free column. Return whether a free row is
/// reachable; if not, all reachable columns have their levels.
bool set_levels(CoverGraph& graph) {
  std::int64_t head = 0, tail = 0;
  for (std::int32_t c = 0; c < graph.num_columns(); ++c) {
    const bool starts = graph.mate[c] < 0 && graph.degree(c) > 0;
    graph.level[c] = starts ? 0 : -1;
    if (starts) graph.queue[tail++] = c;
  }
  std::int32_t nearest = -1;
  while (head < tail) {
    const std::int32_t c = graph.queue[head++];
    // Longer paths wait for a later phase: those of one length that share no vertex are found
    // together, which bounds the phases by the root of the vertices (Hopcroft and Karp).
    if (nearest >= 0 && graph.level[c] > nearest) break;
    for (const std::int32_t row : graph.neighbours(c)) {
      const std::int32_t next = graph.mate[row];
      if (next < 0) {
        nearest = graph.level[c];
      } else if (graph.level[next] < 0) {
        graph.level[next] = graph.level[c] + 1;
        graph.queue[tail++] = next;
      }
    }
  }
  return nearest >= 0;
}

/// Flip the path that `graph.stack[0..depth]` and the entries before their cursors describe.
void flip_path(CoverGraph& graph, std::int64_t depth) {
  for (std::int64_t d = 0; d <= depth; ++d) {
    const std::int32_t c = graph.stack[d];
    const std::int32_t row = graph.neighbour(graph.cursor[c] - 1);
    graph.mate[c] = row;
    graph.mate[row] = c;
  }
}

/// Search, along rising levels, a path from the free column `root` to a free row, and flip it.
/// Levels rise along the stack, so it holds a column at most once.
void augment(CoverGraph& graph, std::int32_t root) {
  std::int64_t depth = 0;
  graph.stack[0] = root;
  while (depth >= 0) {
    const std::int32_t c = graph.stack[depth];
    if (graph.cursor[c] == graph.end(c)) {
      --depth;
      continue;
    }
    const std::int32_t next = graph.mate[graph.neighbour(graph.cursor[c]++)];
    if (next < 0) {
      flip_path(graph, depth);
      return;
    }
    if (graph.level[next] == graph.level[c] + 1) graph.stack[++depth] = next;
  }
}

}  // namespace

void match_fully(CoverGraph& graph) {
  while (set_levels(graph)) {
    // Cursors never go back within a phase: an entry that failed leads to no free row until paths
    // get longer, so a phase looks at every entry once.
    for (std::int32_t c = 0; c < graph.num_columns(); ++c) graph.cursor[c] = graph.begin(c);
    for (std::int32_t c = 0; c < graph.num_columns(); ++c)
      if (graph.mate[c] < 0 && graph.degree(c) > 0) augment(graph, c);
  }
}

void cover_from_matching(CoverGraph& graph) {
  // No minimum cover has a free column, so each has the rows that free columns reach, and not the
  // mates of these: reached vertices are decided, and columns can cover everything else.
  std::fill_n(graph.in_cover.get(), graph.num_vertices(), false);
  for (std::int32_t c = 0; c < graph.num_columns(); ++c) {
    if (graph.level[c] < 0)
      graph.in_cover[c] = graph.degree(c) > 0;
    else if (graph.level[c] > 0)
      graph.in_cover[graph.mate[c]] = true;
  }
}

}  // namespace hpcgnn::kernels
