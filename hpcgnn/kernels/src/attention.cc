#include "attention.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "attention_operands.h"
#include "attention_problem.h"
#include "parallel.h"

namespace hpcgnn::kernels {
namespace {

// Long enough to hide the partial state it may cost, short enough to balance many threads; fixed,
// so that the order of summation does not depend on their number.
constexpr std::int64_t kChunkEdges = 8192;

/// States of the rows that chunks of edges begin inside of, one a chunk.
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

template <class T>
void run_forward(const AttentionBlock& block, const AttentionState& state) {
  const int threads = attention_threads(block);
  const AttentionDropout dropout(block, threads);
  const std::vector<T> source =
      heads_apart<T>(block.source, block.num_columns, block.num_heads, threads);
  AttentionProblem problem = dropout.problem();
  problem.source = source.data();
  const auto kernel = attention_table(block.isa).kernels[static_cast<int>(block.storage)].forward;
  const std::int64_t chunks = (block.num_nonzeros + kChunkEdges - 1) / kChunkEdges;
  const std::int64_t group = heads_in_group(block);
  const std::int64_t groups = (block.num_heads + group - 1) / group;
  Carries<T> carries(block, chunks);
  parallel_tasks(threads, groups * chunks, [&](std::int64_t task) {
    const std::int64_t chunk = task % chunks, head = task / chunks * group;
    const std::int64_t edge = chunk * kChunkEdges;
    kernel(problem,
           {.first_head = head,
            .last_head = std::min(head + group, block.num_heads),
            .first_edge = edge,
            .last_edge = std::min(edge + kChunkEdges, block.num_nonzeros),
            .first_line = line_of_edge(block.indptr, block.num_rows, edge)},
           state, carries.state(chunk));
  });
  for (std::int64_t chunk = 1; chunk < chunks; ++chunk) {
    const std::int64_t edge = chunk * kChunkEdges;
    const std::int64_t i = line_of_edge(block.indptr, block.num_rows, edge);
    const std::int32_t row = block.rows ? block.rows[i] : static_cast<std::int32_t>(i);
    if (block.indptr[i] < edge)
      merge_states<T>(state, carries.state(chunk), &row, {1, block.num_heads, block.head_width}, 1);
  }
}

}  // namespace

void attention_forward(const AttentionBlock& block, const AttentionState& state) {
  if (block.num_nonzeros == 0 || block.num_heads == 0) return;
  if (block.storage == Storage::kFloat64)
    run_forward<double>(block, state);
  else
    run_forward<float>(block, state);
}

}  // namespace hpcgnn::kernels
