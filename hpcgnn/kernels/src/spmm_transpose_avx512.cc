#include "simd_avx512.h"
#include "spmm_transpose_kernel.h"

namespace hpcgnn::kernels {

constinit const SpmmTransposeTable kSpmmTransposeAvx512 =
    make_spmm_transpose_table<avx512::F32, avx512::F64>();

}  // namespace hpcgnn::kernels
