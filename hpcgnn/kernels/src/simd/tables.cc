// Compiled once for each instruction set, with HPCGNN_SIMD naming it: avx2, avx512 or portable.
#include "simd/tables.h"

#include "attention/additive_kernel.h"
#include "attention/dynamic_kernel.h"
#include "attention/shared_kernel.h"
#include "rows/kernel.h"
#include "spmm/kernel.h"
#include "spmm/transpose_kernel.h"

#define HPCGNN_TEXT(name) #name
#define HPCGNN_HEADER(simd) HPCGNN_TEXT(simd.h)
#include HPCGNN_HEADER(HPCGNN_SIMD)

namespace hpcgnn::kernels::HPCGNN_SIMD {

constinit const KernelTables kTables = {
    .spmm = make_spmm_table<F32, F64, kSumRegisters>(),
    .spmm_transpose = make_spmm_transpose_table<F32, F64>(),
    .rows = make_rows_table<F32, F64>(),
    .additive = make_additive_table<F32, F64>(),
    .dynamic = make_dynamic_table<F32, F64>(),
    .shared = {.float32 = make_shared_kernels<F32>(), .float64 = make_shared_kernels<F64>()}};

}  // namespace hpcgnn::kernels::HPCGNN_SIMD
