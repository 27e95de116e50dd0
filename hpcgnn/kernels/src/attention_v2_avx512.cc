#include "attention_v2_kernel.h"
#include "simd_avx512.h"

namespace hpcgnn::kernels {

constinit const AttentionV2Table kAttentionV2Avx512 =
    make_attention_v2_table<avx512::F32, avx512::F64>();

}  // namespace hpcgnn::kernels
