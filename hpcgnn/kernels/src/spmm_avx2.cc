#include "simd_avx2.h"
#include "spmm_kernel.h"

namespace hpcgnn::kernels {

constinit const SpmmTable kSpmmAvx2 = make_spmm_table<avx2::F32, avx2::F64, 12>();

}  // namespace hpcgnn::kernels
