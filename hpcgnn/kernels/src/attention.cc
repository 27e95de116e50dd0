#include "attention.h"

#include <vector>

#include "attention_carries.h"
#include "attention_operands.h"
#include "attention_problem.h"

namespace hpcgnn::kernels {
namespace {

template <class T>
void run_forward(const AttentionBlock& block, const AttentionState& state) {
  const int threads = attention_threads(block);
  const AttentionDropout dropout(block, threads);
  const std::vector<T> source =
      heads_apart<T>(block.source, block.num_columns, block.num_heads, threads);
  AttentionProblem problem = dropout.problem();
  problem.source = source.data();
  const auto kernel = attention_table(block.isa).kernels[static_cast<int>(block.storage)].forward;
  add_to_states<T>(problem, kernel, state, threads);
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
