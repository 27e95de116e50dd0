/// The end of a layer in one pass over its rows: bias, rectifier and dropout; and its adjoint.
#pragma once

#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

/// out[i, c] = drop(rectify(source[i, c] + bias[c])).
///
/// Dropout zeroes an element with probability p and divides the others by 1 - p. Whether element
/// (i, c) is dropped depends on (key, row_ids[i], c) alone: the same at any number of ranks and
/// threads, in every format, and in the backward pass. The random bits are the outputs of
/// SplitMix64 streams, one for each row, with 32 bits for each element.
struct EpilogueArguments {
  const void* source;           ///< num_rows by width
  const void* bias;             ///< accumulator type; null = none
  const std::int64_t* row_ids;  ///< null = no dropout
  void* out;                    ///< of the type of source, and may be source
  std::int64_t num_rows;
  std::int64_t width;
  std::uint64_t key;
  double p;  ///< in [0, 1]; 1 drops everything
  bool rectify;
  Storage storage;
  int num_threads;  ///< 0 = OpenMP default
  Isa isa;
};

/// out[i, c] = result[i, c] > 0 ? scale * gradient[i, c] : 0, and the sums of its columns.
///
/// The adjoint of an epilogue that rectifies: elements that dropout zeroed are not positive.
struct EpilogueGradient {
  const void* gradient;
  const void* result;  ///< null = out is scale * gradient
  void* out;           ///< of the type of both, and may be either; null = only the sums
  void* sums;          ///< (width,) accumulator type, overwritten; null = none
  std::int64_t num_rows;
  std::int64_t width;
  double scale;
  Storage storage;
  int num_threads;
  Isa isa;
};

/// See EpilogueArguments.
void finish_rows(const EpilogueArguments& arguments);

/// See EpilogueGradient. Sums are of fixed chunks of rows, added up in order: they do not depend on
/// the number of threads.
void finish_rows_gradient(const EpilogueGradient& arguments);

/// Kernels by storage type, for rows [first, last); `sums` has room for one row.
struct EpilogueTable {
  void (*finish[kNumStorages])(const EpilogueArguments&, std::int64_t first, std::int64_t last);
  void (*gradient[kNumStorages])(const EpilogueGradient&, std::int64_t first, std::int64_t last,
                                 void* sums);
};

}  // namespace hpcgnn::kernels
