#include "attention_shared_kernel.h"
#include "simd_avx2.h"

namespace hpcgnn::kernels {

constinit const SharedTable kSharedAvx2 = {make_shared_kernels<avx2::F32>(),
                                           make_shared_kernels<avx2::F64>()};

}  // namespace hpcgnn::kernels
