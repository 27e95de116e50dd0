#include <algorithm>
#include <vector>

#include "attention/attention.h"
#include "attention/problem.h"
#include "attention/tasks.h"
#include "parallel.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

const DynamicKernels& kernels_of(const AttentionBlock& block) {
  const int storage = static_cast<int>(block.storage);
  if (block.source == nullptr) return table_of<ProductTable>(block.isa).kernels[storage];
  return table_of<DynamicTable>(block.isa).kernels[storage];
}

AttentionProblem problem_of(const AttentionDropout& dropout, const AttentionBlock& block) {
  AttentionProblem problem = dropout.problem();
  problem.source = block.source;
  return problem;
}

template <class T>
void add(const std::vector<T>& sums, std::int64_t row, std::int64_t width, T* out) {
  for (std::int64_t c = 0; c < width; ++c)
    out[c] += sums[static_cast<std::size_t>(row * width + c)];
}

/// Lines with rows of `gradients`, `width` numbers each; `places` are the numbers of these rows,
/// null = in order.
struct Lines {
  std::int64_t count, width;
  void* gradients;
  const std::int32_t* places;
};

template <class T>
void run_backward(const AttentionBlock& block, const Lines& lines, DynamicKernels::Backward kernel,
                  const DynamicGradients& gradients, void* dvector) {
  const int threads = attention_threads(block);
  const AttentionDropout dropout(block, threads);
  const AttentionProblem problem = problem_of(dropout, block);
  const EdgeChunks chunks(block, lines.count);
  const std::int64_t width = lines.width;
  std::vector<T> carries(static_cast<std::size_t>(chunks.num_chunks() * width));
  const bool by_line = block.whole_lines && dvector != nullptr;
  std::vector<T> vectors(dvector == nullptr || by_line ? 0 : carries.size());
  parallel_tasks(threads, chunks.num_tasks(), [&](std::int64_t task) {
    const std::int64_t offset = chunks.chunk_of(task) * width;
    kernel(problem, chunks.task(task), gradients,
           {carries.data() + offset, vectors.empty() ? dvector : vectors.data() + offset,
            by_line ? width : 0});
  });
  for (std::int64_t chunk = 0; chunk < chunks.num_chunks(); ++chunk) {
    const std::int64_t line = chunks.cut_line(chunk);
    if (line >= 0)
      add(carries, chunk, width,
          static_cast<T*>(lines.gradients) + (lines.places ? lines.places[line] : line) * width);
    if (!vectors.empty()) add(vectors, chunk, width, static_cast<T*>(dvector));
  }
}

}  // namespace

void dynamic_forward(const AttentionBlock& block, const AttentionState& state) {
  if (block.num_nonzeros == 0) return;
  const int threads = attention_threads(block);
  const AttentionDropout dropout(block, threads);
  const auto run =
      block.storage == Storage::kFloat64 ? add_to_states<double> : add_to_states<float>;
  run(problem_of(dropout, block), kernels_of(block).forward, state, threads);
}

void dynamic_backward_rows(const AttentionBlock& block, const DynamicGradients& gradients) {
  if (block.num_nonzeros == 0) return;
  const auto run = block.storage == Storage::kFloat64 ? run_backward<double> : run_backward<float>;
  const std::int64_t width = block.num_heads * block.head_width;
  run(block, {block.num_rows, width, gradients.dtarget, block.rows},
      kernels_of(block).backward_rows, gradients, gradients.dvector);
}

void dynamic_backward_columns(const AttentionBlock& block, const DynamicGradients& gradients) {
  if (block.num_nonzeros == 0) return;
  const auto run = block.storage == Storage::kFloat64 ? run_backward<double> : run_backward<float>;
  const std::int64_t width = block.num_heads * block.head_width * (block.keyed ? 2 : 1);
  run(block, {block.num_columns, width, gradients.dz, nullptr}, kernels_of(block).backward_columns,
      gradients, nullptr);
}

}  // namespace hpcgnn::kernels
