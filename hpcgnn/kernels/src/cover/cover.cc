#include "cover/cover.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "cover/graph.h"
#include "parallel.h"

namespace hpcgnn::kernels {
namespace {

constexpr std::int64_t kTaskEntries = 1 << 16;

CoverSizes largest_sizes(const Pattern& transposed, const std::int64_t* column_starts,
                         std::int64_t num_blocks) {
  CoverSizes sizes;
  sizes.num_rows = transposed.num_columns;
  for (std::int64_t q = 0; q < num_blocks; ++q) {
    const std::int64_t first = column_starts[q], last = column_starts[q + 1];
    const std::int64_t entries = transposed.indptr[last] - transposed.indptr[first];
    // An entry adds at most one row, and a sparse block has few of all rows.
    const std::int64_t vertices = last - first + std::min(entries, sizes.num_rows);
    sizes.num_columns = std::max(sizes.num_columns, last - first);
    sizes.num_entries = std::max(sizes.num_entries, entries);
    sizes.num_vertices = std::max(sizes.num_vertices, vertices);
  }
  return sizes;
}

/// Cover the graph of block q and write its part of the result.
void cover_block(CoverGraph& graph, std::int64_t q, std::int64_t first_column, bool exact,
                 const CoverResult& result) {
  // The greedy cover is needed in either case: its matching leaves few phases to the exact one.
  const std::int64_t matched = cover_greedily(graph);
  if (exact) {
    match_fully(graph);
    cover_from_matching(graph);
  } else {
    shrink_cover(graph);
  }
  const bool* const columns = graph.in_cover.get();
  const bool* const rows = columns + graph.num_columns();
  std::copy_n(columns, graph.num_columns(), result.fetched + first_column);
  result.fetched_rows[q] = std::count(columns, rows, true);
  result.pushed_rows[q] = std::count(rows, columns + graph.num_vertices(), true);
  // Two entries of a matching share no vertex, so no cover has fewer vertices than it has entries.
  result.lower_bound[q] = exact ? result.fetched_rows[q] + result.pushed_rows[q] : matched;
}

}  // namespace

void vertex_cover(const Pattern& a, const std::int64_t* column_starts, std::int64_t num_blocks,
                  std::int64_t limit, int num_threads, const CoverResult& result) {
  const std::int64_t nonzeros = a.indptr[a.num_rows];
  std::vector<std::int64_t> starts(static_cast<std::size_t>(a.num_columns + 1));
  std::vector<std::int32_t> rows(static_cast<std::size_t>(nonzeros));
  transpose_csr(a, nullptr, 0, {starts.data(), rows.data(), nullptr, nullptr}, num_threads);
  const Pattern transposed{starts.data(), rows.data(), a.num_columns, a.num_rows};

  const CoverSizes sizes = largest_sizes(transposed, column_starts, num_blocks);
  const std::int64_t workers = std::min<std::int64_t>(resolve_threads(num_threads), num_blocks);
  std::vector<CoverGraph> graphs;
  for (std::int64_t worker = 0; worker < workers; ++worker) graphs.emplace_back(sizes);
  std::atomic<std::int64_t> next{0};
  parallel_tasks(static_cast<int>(workers), workers, [&](std::int64_t worker) {
    CoverGraph& graph = graphs[static_cast<std::size_t>(worker)];
    // Blocks differ by orders of magnitude, so each worker takes the next one when it is done.
    for (std::int64_t q = next++; q < num_blocks; q = next++) {
      const std::int64_t first = column_starts[q], last = column_starts[q + 1];
      graph.load(transposed, first, last);
      const bool exact = transposed.indptr[last] - transposed.indptr[first] <= limit;
      cover_block(graph, q, first, exact, result);
    }
  });
  parallel_tasks(resolve_threads(num_threads), (nonzeros + kTaskEntries - 1) / kTaskEntries,
                 [&](std::int64_t task) {
                   const std::int64_t last = std::min(nonzeros, (task + 1) * kTaskEntries);
                   for (std::int64_t e = task * kTaskEntries; e < last; ++e)
                     result.pushed[e] = !result.fetched[a.indices[e]];
                 });
}

}  // namespace hpcgnn::kernels
