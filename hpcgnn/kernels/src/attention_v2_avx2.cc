#include "attention_v2_kernel.h"
#include "simd_avx2.h"

namespace hpcgnn::kernels {

constinit const AttentionV2Table kAttentionV2Avx2 = make_attention_v2_table<avx2::F32, avx2::F64>();

}  // namespace hpcgnn::kernels
