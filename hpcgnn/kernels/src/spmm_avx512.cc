#include "simd_avx512.h"
#include "spmm_kernel.h"

namespace hpcgnn::kernels {

constinit const SpmmTable kSpmmAvx512 = make_spmm_table<avx512::F32, avx512::F64, 16>();

}  // namespace hpcgnn::kernels
