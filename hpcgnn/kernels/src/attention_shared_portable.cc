#include "attention_shared_kernel.h"
#include "simd_portable.h"

namespace hpcgnn::kernels {

constinit const SharedTable kSharedPortable = {make_shared_kernels<portable::F32>(),
                                               make_shared_kernels<portable::F64>()};

}  // namespace hpcgnn::kernels
