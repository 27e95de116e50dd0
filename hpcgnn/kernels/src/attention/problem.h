/// What the attention kernels work on, and the tables that hold those of each instruction set.
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "types.h"

namespace hpcgnn::kernels {

/// Dropout ready for the kernels: an edge is dropped when the 32 bits of its name are below
/// `threshold`.
struct DropoutBits {
  const std::uint64_t* streams;  ///< row_stream of each row of the block; null = keep all
  std::uint64_t threshold;
};

/// A block as the kernels read it.
struct AttentionProblem {
  const AttentionBlock* block;
  const void* source;  ///< num_heads by num_columns; forward only
  DropoutBits weights;
  DropoutBits edges;
};

/// Edges [first_edge, last_edge) of heads [first_head, last_head). The first row (forward) or
/// column (backward) begins before first_edge if it is cut; what it gains then goes to `carry`.
struct AttentionTask {
  std::int64_t first_head;
  std::int64_t last_head;
  std::int64_t first_edge;
  std::int64_t last_edge;
  std::int64_t first_line;
};

/// What edges of a head in the backward pass need of their row, side by side.
template <class T>
struct alignas(4 * sizeof(T)) TargetTerms {
  T target, lse, delta, unused;
};

/// What a task of the backward pass adds to. `terms` and `dtarget` hold the heads of the task one
/// after the other, num_rows (of the block) each.
struct AdditiveSums {
  const void* terms;
  const void* grad;
  void* dz;
  void* dsource;
  void* carry_dz;       ///< one row of z
  void* carry_dsource;  ///< one row of source
  void* dtarget;
  const void* weights;  ///< of source; null = source is an operand of its own
  void* dweights;       ///< one row of z
  void* dedges;         ///< null where edges have no scores of their own
  AttentionSums rounded;
};

struct AdditiveKernels {
  void (*forward)(const AttentionProblem&, const AttentionTask&, const AttentionState& state,
                  const AttentionState& carry);
  void (*backward)(const AttentionProblem&, const AttentionTask&, const AdditiveSums&);
};

/// Kernels by storage type of z.
struct AdditiveTable {
  AdditiveKernels kernels[kNumStorages];

  static const AdditiveTable portable, avx2, avx512;  ///< see table_of
};

/// Sums that a task of a backward pass adds to where it may not write the result itself.
struct DynamicSums {
  void* carry;                 ///< gradient of the line that the task begins inside of
  void* dvector;               ///< of the pass over rows
  std::int64_t dvector_pitch;  ///< from one row of the block to the next; 0: one for all
};

/// The `source` of their AttentionProblem is the vector.
struct DynamicKernels {
  using Backward = void (*)(const AttentionProblem&, const AttentionTask&, const DynamicGradients&,
                            const DynamicSums&);

  void (*forward)(const AttentionProblem&, const AttentionTask&, const AttentionState& state,
                  const AttentionState& carry);
  Backward backward_rows;
  Backward backward_columns;
};

/// Kernels by storage type of z.
struct DynamicTable {
  DynamicKernels kernels[kNumStorages];

  static const DynamicTable portable, avx2, avx512;  ///< see table_of
};

/// The same for products: keyed blocks whose `source` is null.
struct ProductTable {
  DynamicKernels kernels[kNumStorages];

  static const ProductTable portable, avx2, avx512;  ///< see table_of
};

}  // namespace hpcgnn::kernels
