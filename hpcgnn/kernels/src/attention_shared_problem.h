/// Tables of the kernels of attention_shared.h.
#pragma once

#include "attention_problem.h"
#include "attention_shared.h"

namespace hpcgnn::kernels {

/// Heads that share a read of x, at most.
inline constexpr std::int64_t kSharingHeads = 8;

/// A block, and how its heads draw the weights that they drop.
struct SharedProblem : AttentionProblem {
  std::int64_t heads_per_word;  ///< weights.streams holds num_rows for each so many heads
};

/// Rows [first_row, last_row) of a block, heads [first_head, last_head).
struct SharedTask {
  std::int64_t first_row;
  std::int64_t last_row;
  std::int64_t first_head;
  std::int64_t last_head;
};

struct ColumnRange {
  std::int64_t first;
  std::int64_t last;
};

struct SharedKernels {
  void (*forward)(const SharedProblem&, const SharedTask&, const SharedMeans&);
  /// Gradients of target and of source, the latter into one slice.
  void (*backward_rows)(const SharedProblem&, const SharedTask&, const SharedGradients&,
                        void* dsource);
  /// The gradient of x, of a range of its rows.
  void (*backward_columns)(const SharedProblem&, const SharedTask&, const SharedGradients&,
                           const ColumnRange&);
};

struct SharedTable {
  SharedKernels float32, float64;
};

extern const SharedTable kSharedPortable;
#ifdef HPCGNN_X86
extern const SharedTable kSharedAvx2;
extern const SharedTable kSharedAvx512;
#endif

}  // namespace hpcgnn::kernels
