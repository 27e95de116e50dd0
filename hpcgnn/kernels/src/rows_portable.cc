#include "rows_kernel.h"
#include "simd_portable.h"

namespace hpcgnn::kernels {

constinit const RowsTable kRowsPortable = make_rows_table<portable::F32, portable::F64>();

}  // namespace hpcgnn::kernels
