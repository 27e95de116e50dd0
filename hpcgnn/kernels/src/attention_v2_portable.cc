#include "attention_v2_kernel.h"
#include "simd_portable.h"

namespace hpcgnn::kernels {

constinit const AttentionV2Table kAttentionV2Portable =
    make_attention_v2_table<portable::F32, portable::F64>();

}  // namespace hpcgnn::kernels
