#include "rows_kernel.h"
#include "simd_avx512.h"

namespace hpcgnn::kernels {

constinit const RowsTable kRowsAvx512 = make_rows_table<avx512::F32, avx512::F64>();

}  // namespace hpcgnn::kernels
