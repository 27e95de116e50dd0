#include "simd_portable.h"
#include "spmm_transpose_kernel.h"

namespace hpcgnn::kernels {

constinit const SpmmTransposeTable kSpmmTransposePortable =
    make_spmm_transpose_table<portable::F32, portable::F64>();

}  // namespace hpcgnn::kernels
