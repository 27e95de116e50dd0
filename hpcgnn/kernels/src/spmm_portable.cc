#include "simd_portable.h"
#include "spmm_kernel.h"

namespace hpcgnn::kernels {

// 64-bit Arm has twice the vector registers of baseline x86.
#ifdef __aarch64__
constinit const SpmmTable kSpmmPortable = make_spmm_table<portable::F32, portable::F64, 16>();
#else
constinit const SpmmTable kSpmmPortable = make_spmm_table<portable::F32, portable::F64, 8>();
#endif

}  // namespace hpcgnn::kernels
