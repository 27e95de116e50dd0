/// What the row kernels of an instruction set work on, and their table.
#pragma once

#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

/// See RowsArguments.
struct RowsProblem {
  const void* source;
  const std::int32_t* rows;
  void* out;
  std::int64_t num_rows;
  std::int64_t width;
};

/// Kernels by storage type of source and of out; null where the pair is not offered.
struct RowsTable {
  using Kernel = void (*)(const RowsProblem&, std::int64_t first, std::int64_t last);
  Kernel convert[kNumStorages][kNumStorages];      ///< rows [first, last) of out
  Kernel scatter_add[kNumStorages][kNumStorages];  ///< additions to rows [first, last) of out
};

extern const RowsTable kRowsPortable;
#ifdef HPCGNN_X86
extern const RowsTable kRowsAvx2;
extern const RowsTable kRowsAvx512;
#endif

}  // namespace hpcgnn::kernels
