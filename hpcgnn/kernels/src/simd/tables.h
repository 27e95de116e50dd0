/// All kernels that have a version for each instruction set, chosen by cpuid at run time.
#pragma once

#include "attention/problem.h"
#include "attention/shared.h"
#include "rows/rows.h"
#include "spmm/problem.h"
#include "spmm/transpose.h"
#include "types.h"

namespace hpcgnn::kernels {

/// The kernels of one instruction set.
struct KernelTables {
  SpmmTable spmm;
  SpmmTransposeTable spmm_transpose;
  RowsTable rows;
  AdditiveTable additive;
  DynamicTable dynamic;
  SharedTable shared;
};

// Each is tables.cc, compiled for that instruction set.
namespace portable {
extern const KernelTables kTables;
}
#ifdef HPCGNN_X86
namespace avx2 {
extern const KernelTables kTables;
}
namespace avx512 {
extern const KernelTables kTables;
}
#endif

inline const KernelTables& tables_of(Isa isa) {
#ifdef HPCGNN_X86
  if (isa == Isa::kAvx512) return avx512::kTables;
  if (isa == Isa::kAvx2) return avx2::kTables;
#endif
  static_cast<void>(isa);
  return portable::kTables;
}

}  // namespace hpcgnn::kernels
