#include "simd_portable.h"
#include "spmm_kernel.h"

namespace hpcgnn::kernels {

constinit const SpmmTable kSpmmPortable = make_spmm_table<portable::F32, portable::F64, 8>();

}  // namespace hpcgnn::kernels
