// The table of one family of kernels for one instruction set; compiled once for each such pair.
// HPCGNN_FAMILY is the header of the family's kernels, HPCGNN_SIMD is avx2, avx512 or portable.
#include HPCGNN_FAMILY

#define HPCGNN_TEXT(name) #name
#define HPCGNN_HEADER(simd) HPCGNN_TEXT(simd.h)
#include HPCGNN_HEADER(HPCGNN_SIMD)

namespace hpcgnn::kernels {

using Table = decltype(make_table<HPCGNN_SIMD::F32, HPCGNN_SIMD::F64>());

constinit const Table Table::HPCGNN_SIMD = make_table<HPCGNN_SIMD::F32, HPCGNN_SIMD::F64>();

}  // namespace hpcgnn::kernels
