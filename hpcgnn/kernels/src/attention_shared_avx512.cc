#include "attention_shared_kernel.h"
#include "simd_avx512.h"

namespace hpcgnn::kernels {

constinit const SharedTable kSharedAvx512 = {make_shared_kernels<avx512::F32>(),
                                             make_shared_kernels<avx512::F64>()};

}  // namespace hpcgnn::kernels
