/// Shared by the drivers of the attention kernels: rearranged operands, and edges cut into tasks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "attention/problem.h"
#include "parallel.h"

namespace hpcgnn::kernels {

/// Calls body(i) for all i in [0, count); a task is a chunk of them.
template <class Body>
void for_each_row(std::int64_t count, int num_threads, const Body& body) {
  constexpr std::int64_t kRows = 4096;
  parallel_tasks(num_threads, (count + kRows - 1) / kRows, [&](std::int64_t task) {
    const std::int64_t last = std::min(count, (task + 1) * kRows);
    for (std::int64_t i = task * kRows; i < last; ++i) body(i);
  });
}

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

/// Number of heads that are processed together: as many as fill `kGroupBytes` of a row of z, from
/// one to the lanes of a register. Few, so that the cache holds more of the most-read rows.
std::int64_t heads_in_group(const AttentionBlock& block);

/// Source scores by group of heads: (groups, num_columns, head_step) from (num_columns, num_heads),
/// with zeros in place of heads that a group lacks, and `kOverread` more behind.
template <class T>
std::vector<T> groups_apart(const void* source, std::int64_t num_columns, std::int64_t num_heads,
                            std::int64_t group, int num_threads);

/// Number of threads for a block: one if it is small.
int attention_threads(const AttentionBlock& block);

/// Line (row, or column of the transpose) that edge `edge` belongs to, skipping empty lines;
/// num_lines if `edge` is behind all edges.
std::int64_t line_of_edge(const std::int64_t* indptr, std::int64_t num_lines, std::int64_t edge);

/// The edges of a pattern in chunks of a fixed number, times the groups of heads, as tasks.
class EdgeChunks {
 public:
  /// @param num_lines number of rows of the walked pattern.
  EdgeChunks(const AttentionBlock& block, std::int64_t num_lines);

  std::int64_t num_chunks() const { return chunks_; }
  std::int64_t num_tasks() const { return groups_ * chunks_; }
  std::int64_t chunk_of(std::int64_t task) const { return task % chunks_; }
  AttentionTask task(std::int64_t index) const;

  /// The line inside which chunk `chunk` begins, or -1.
  std::int64_t cut_line(std::int64_t chunk) const;

 private:
  /// The first edge of a chunk: the start of a line, if lines must not be cut.
  std::int64_t first_edge(std::int64_t chunk) const;

  const AttentionBlock& block_;
  std::int64_t lines_, chunks_, group_, groups_;
};

template <class T>
class Carries {
 public:
  Carries(const AttentionBlock& block, std::int64_t num_chunks)
      : heads_(block.num_heads),
        width_(block.num_heads * block.head_width),
        top_(static_cast<std::size_t>(num_chunks * heads_), -std::numeric_limits<T>::infinity()),
        total_(top_.size()),
        out_(static_cast<std::size_t>(num_chunks * width_)) {}

  AttentionState state(std::int64_t chunk) {
    return {top_.data() + chunk * heads_, total_.data() + chunk * heads_,
            out_.data() + chunk * width_};
  }

 private:
  std::int64_t heads_, width_;
  std::vector<T> top_, total_, out_;
};

using StateKernel = void (*)(const AttentionProblem&, const AttentionTask&,
                             const AttentionState& state, const AttentionState& carry);

/// Run a kernel over the edges of a block and merge the rows that were cut, in order.
template <class T>
void add_to_states(const AttentionProblem& problem, StateKernel kernel, const AttentionState& state,
                   int num_threads) {
  const AttentionBlock& block = *problem.block;
  const EdgeChunks chunks(block, block.num_rows);
  Carries<T> carries(block, chunks.num_chunks());
  parallel_tasks(num_threads, chunks.num_tasks(), [&](std::int64_t task) {
    kernel(problem, chunks.task(task), state, carries.state(chunks.chunk_of(task)));
  });
  for (std::int64_t chunk = 1; chunk < chunks.num_chunks(); ++chunk) {
    const std::int64_t i = chunks.cut_line(chunk);
    if (i < 0) continue;
    const std::int32_t row = block.rows ? block.rows[i] : static_cast<std::int32_t>(i);
    merge_states<T>(state, carries.state(chunk), &row, {1, block.num_heads, block.head_width}, 1);
  }
}

}  // namespace hpcgnn::kernels
