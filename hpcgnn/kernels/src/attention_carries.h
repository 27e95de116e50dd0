/// States of the rows that chunks of edges begin inside of, merged once the chunks are done.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "attention_operands.h"
#include "parallel.h"

namespace hpcgnn::kernels {

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
