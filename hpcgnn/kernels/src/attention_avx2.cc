#include "attention_kernel.h"
#include "simd_avx2.h"

namespace hpcgnn::kernels {

constinit const AttentionTable kAttentionAvx2 = make_attention_table<avx2::F32, avx2::F64>();

}  // namespace hpcgnn::kernels
