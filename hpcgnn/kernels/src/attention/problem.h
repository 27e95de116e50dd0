/// The operands of the attention kernels, and the tables of these kernels by instruction set.
#pragma once

#include <bit>
#include <cstdint>

#include "attention/attention.h"
#include "types.h"

namespace hpcgnn::kernels {

/// Dropout as the kernels apply it: an edge is dropped when the 32 random bits of its ids are below
/// `threshold`.
struct DropoutBits {
  const std::uint64_t* streams;  ///< row_stream of each row of the block; null = keep all
  std::uint64_t threshold;
};

/// A block in the form that the kernels read.
struct AttentionProblem {
  const AttentionBlock* block;
  const void* source;  ///< for additive scores, in the forward pass: the result of `groups_apart`
  DropoutBits weights;
  DropoutBits edges;
};

/// Distance between the numbers of a group of heads, a power of two: registers repeat them.
constexpr std::int64_t head_step(std::int64_t heads) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(heads)));
}

/// Padding behind an array that is read a register at a time.
inline constexpr std::int64_t kOverread = 16;

/// Edges [first_edge, last_edge) of heads [first_head, last_head), a group of `heads_in_group` or,
/// at the end, fewer. The first row (forward) or column (backward) begins before first_edge if it
/// is cut; its sum then goes to `carry`.
struct AttentionTask {
  std::int64_t first_head;
  std::int64_t last_head;
  std::int64_t first_edge;
  std::int64_t last_edge;
  std::int64_t first_line;
  std::int64_t group;  ///< heads of a group
};

/// Calls body(line, first, count, cut) for the edges of a task, with `cut` if it begins inside the
/// line. A line is divided after every `longest` edges from its start, and nowhere else, so its
/// sums do not depend on other lines.
template <class Body>
HPCGNN_INLINE void for_pieces(const AttentionBlock& b, std::int64_t num_lines,
                              const AttentionTask& task, std::int64_t longest, const Body& body) {
  for (std::int64_t i = task.first_line; i < num_lines && b.indptr[i] < task.last_edge; ++i) {
    const bool cut = b.indptr[i] < task.first_edge;
    const std::int64_t begin = cut ? task.first_edge : b.indptr[i];
    const std::int64_t end = b.indptr[i + 1] < task.last_edge ? b.indptr[i + 1] : task.last_edge;
    for (std::int64_t first = begin; first < end; first += longest)
      body(i, first, end - first < longest ? end - first : longest, cut);
  }
}

/// The sums that a task of the backward pass adds to. For each row of the block, `terms` has the
/// target, lse and delta of the task's heads, `head_step` numbers each, and `dtarget` one of these.
struct AdditiveSums {
  const void* terms;  ///< num_rows by kTerms * head_step, with kOverread behind
  const void* grad;
  void* dz;
  void* dsource;
  void* carry_dz;       ///< one row of z
  void* carry_dsource;  ///< one row of source
  void* dtarget;
  const void* weights;  ///< of source; null = source is a separate operand
  void* dweights;       ///< one row of z
  void* dedges;         ///< null if edges have no own scores
  AttentionSums rounded;
};

/// Three and a spare one, so that those of four heads in float32 fill a cache line.
inline constexpr std::int64_t kTerms = 4;

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

/// Sums that a task of a backward pass adds to where it must not write the result itself.
struct DynamicSums {
  void* carry;                 ///< gradient of the line inside which the task begins
  void* dvector;               ///< of the pass over rows
  std::int64_t dvector_pitch;  ///< elements from one row of the block to the next; 0 = shared
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

/// The same for products, whose blocks are keyed and have a null `source`.
struct ProductTable {
  DynamicKernels kernels[kNumStorages];

  static const ProductTable portable, avx2, avx512;  ///< see table_of
};

}  // namespace hpcgnn::kernels
