#include "simd_avx2.h"
#include "spmm_transpose_kernel.h"

namespace hpcgnn::kernels {

constinit const SpmmTransposeTable kSpmmTransposeAvx2 =
    make_spmm_transpose_table<avx2::F32, avx2::F64>();

}  // namespace hpcgnn::kernels
