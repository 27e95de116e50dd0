#include "attention_kernel.h"
#include "simd_portable.h"

namespace hpcgnn::kernels {

constinit const AttentionTable kAttentionPortable =
    make_attention_table<portable::F32, portable::F64>();

}  // namespace hpcgnn::kernels
