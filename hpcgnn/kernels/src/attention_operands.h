/// What the drivers of the attention kernels share: operands rearranged, edges cut into tasks.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_problem.h"

namespace hpcgnn::kernels {

/// The dropout of a block, drawn for its rows; `problem()` points into this object.
class AttentionDropout {
 public:
  AttentionDropout(const AttentionBlock& block, int num_threads);

  /// The block without `source`, which only the forward pass reads head by head.
  AttentionProblem problem() const;

 private:
  const AttentionBlock& block_;
  std::vector<std::uint64_t> weight_streams_, edge_streams_;
};

/// Columns of heads one after the other: (num_heads, num_columns) from (num_columns, num_heads).
template <class T>
std::vector<T> heads_apart(const void* source, std::int64_t num_columns, std::int64_t num_heads,
                           int num_threads);

/// Heads that go by together: as many as fill `kGroupBytes` of a row of z, at least one. Few, so
/// that the cache holds more of the rows that are read most.
std::int64_t heads_in_group(const AttentionBlock& block);

/// Threads for a block: one when it is small.
int attention_threads(const AttentionBlock& block);

/// Line (row, or column of the transpose) that edge `edge` belongs to, skipping empty lines.
/// @pre edge < indptr[num_lines].
std::int64_t line_of_edge(const std::int64_t* indptr, std::int64_t num_lines, std::int64_t edge);

/// The edges of a pattern in chunks of a fixed number, times the groups of heads, as tasks.
class EdgeChunks {
 public:
  /// @param num_lines rows of the pattern that is walked.
  EdgeChunks(const AttentionBlock& block, std::int64_t num_lines);

  std::int64_t num_chunks() const { return chunks_; }
  std::int64_t num_tasks() const { return groups_ * chunks_; }
  std::int64_t chunk_of(std::int64_t task) const { return task % chunks_; }
  AttentionTask task(std::int64_t index) const;

  /// The line that chunk `chunk` begins inside of, or -1.
  std::int64_t cut_line(std::int64_t chunk) const;

 private:
  const AttentionBlock& block_;
  std::int64_t lines_, chunks_, group_, groups_;
};

}  // namespace hpcgnn::kernels
