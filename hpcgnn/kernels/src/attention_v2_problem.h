/// The tables that hold the kernels of attention_v2.h of each instruction set.
#pragma once

#include "attention_problem.h"
#include "attention_v2.h"

namespace hpcgnn::kernels {

/// Sums that a task of a backward pass adds to where it may not write the result itself.
struct AttentionV2Sums {
  void* carry;    ///< gradient of the line that the task begins inside of
  void* dvector;  ///< of the pass over rows
};

/// The `source` of their AttentionProblem is the vector.
struct AttentionV2Kernels {
  using Backward = void (*)(const AttentionProblem&, const AttentionTask&,
                            const AttentionV2Gradients&, const AttentionV2Sums&);

  void (*forward)(const AttentionProblem&, const AttentionTask&, const AttentionState& state,
                  const AttentionState& carry);
  Backward backward_rows;
  Backward backward_columns;
};

/// Kernels by storage type of z.
struct AttentionV2Table {
  AttentionV2Kernels kernels[kNumStorages];
};

extern const AttentionV2Table kAttentionV2Portable;
#ifdef HPCGNN_X86
extern const AttentionV2Table kAttentionV2Avx2;
extern const AttentionV2Table kAttentionV2Avx512;
#endif

}  // namespace hpcgnn::kernels
