#include "attention_kernel.h"
#include "simd_avx512.h"

namespace hpcgnn::kernels {

constinit const AttentionTable kAttentionAvx512 = make_attention_table<avx512::F32, avx512::F64>();

}  // namespace hpcgnn::kernels
