#include "rows_kernel.h"
#include "simd_avx2.h"

namespace hpcgnn::kernels {

constinit const RowsTable kRowsAvx2 = make_rows_table<avx2::F32, avx2::F64>();

}  // namespace hpcgnn::kernels
