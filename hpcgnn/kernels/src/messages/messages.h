/// The steps of networks on edges between their dense products, each in one pass over a block of
/// rows, and their adjoints.
///
/// A block has few enough rows for its arrays to stay in a cache. For each edge, a layer with a
/// network of n maps of width w costs 2 n w^2 operations forward, 4 n w^2 backward and, if nothing
/// is kept, 2 n w^2 to recompute it. These passes read and write about 7 n w numbers in the cache.
/// Main memory only has the edge's state, read twice and written once, and its gradient, read and
/// written once.
#pragma once

#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

/// Functions of each number whose derivatives follow from their results.
enum class Activation : std::uint8_t { kNone, kRelu, kElu };

/// out[i] = activate(rows[i] + targets[target_ids[i]] + sources[source_ids[i]] + bias).
struct CombineArguments {
  const void* rows;     ///< num_rows by width
  const void* targets;  ///< of the type of rows; null = none
  const std::int32_t* target_ids;
  const void* sources;  ///< of the type of rows; null = none
  const std::int32_t* source_ids;
  const void* bias;  ///< accumulator type; null = none
  void* out;         ///< of the type of rows, and may be rows
  std::int64_t num_rows, width;
  Activation activation;
  Storage storage;
  int num_threads;  ///< 0 = OpenMP default
  Isa isa;
};

/// The adjoint: out = gradient times the derivative, which follows from the result; out[i] is added
/// to of_targets[target_ids[i]] and of_sources[source_ids[i]], in ascending i, and to of_bias.
struct CombineGradient {
  const void* gradient;  ///< num_rows by width
  const void* result;    ///< null = no activation
  void* out;             ///< of the type of both, and may be either
  void* of_targets;      ///< accumulator type, like of_sources and of_bias; null = none
  const std::int32_t* target_ids;
  std::int64_t num_targets;
  void* of_sources;
  const std::int32_t* source_ids;
  std::int64_t num_sources;
  void* of_bias;
  std::int64_t num_rows, width;
  Activation activation;
  Storage storage;
  int num_threads;
  Isa isa;
};

/// out[i] = residual[i] + scale (y - mean y) / sqrt(var y + eps) + shift of y = rows[i] + bias,
/// mean and variance of the row's columns (Ba, Kiros and Hinton, 2016).
struct NormArguments {
  const void* rows;   ///< num_rows by width
  const void* bias;   ///< accumulator type, like scale and shift; null = none
  const void* scale;  ///< null = no norm, and no shift: y itself
  const void* shift;
  const void* residual;  ///< of the type of rows; null = none
  void* out;             ///< of the type of rows, and may be rows or residual
  std::int64_t num_rows, width;
  double eps;
  Storage storage;
  int num_threads;
  Isa isa;
};

/// The adjoint: writes the gradient of rows to out, and adds those of bias, scale and shift to
/// of_bias, of_scale and of_shift. The gradient of the residual is `gradient` itself.
struct NormGradient {
  NormArguments norm;    ///< `residual` and `out` are not read
  const void* gradient;  ///< num_rows by width
  void* out;             ///< of the type of rows, and may be rows or gradient
  void* of_bias;         ///< accumulator type, like the next two; null = none
  void* of_scale;
  void* of_shift;
};

void combine_rows(const CombineArguments& arguments);
/// Sums are those of fixed chunks of rows, added up in order: they do not depend on the threads.
void combine_rows_gradient(const CombineGradient& arguments);
void norm_rows(const NormArguments& arguments);
/// Sums are computed as by combine_rows_gradient.
void norm_rows_gradient(const NormGradient& arguments);

/// Kernels by storage type, for rows [first, last). `sums` has a row of zeros for each sum; null
/// where one is not wanted. `scatters` tells whether the kernel adds the gradient of a combination
/// to the rows of its ends.
struct MessagesTable {
  void (*combine[kNumStorages])(const CombineArguments&, std::int64_t first, std::int64_t last);
  void (*combine_gradient[kNumStorages])(const CombineGradient&, std::int64_t first,
                                         std::int64_t last, bool scatters, void* sums);
  void (*norm[kNumStorages])(const NormArguments&, std::int64_t first, std::int64_t last);
  void (*norm_gradient[kNumStorages])(const NormGradient&, std::int64_t first, std::int64_t last,
                                      void* sums);

  static const MessagesTable portable, avx2, avx512;  ///< see table_of
};

}  // namespace hpcgnn::kernels
