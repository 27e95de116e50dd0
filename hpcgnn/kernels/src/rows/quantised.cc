#include "rows/quantised.h"

#include "parallel.h"
#include "rows/rows.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

void run(QuantisedTable::Kernel kernel, const QuantisedArguments& a) {
  if (a.width > 0) RowChunks(a.num_rows, a.width, a.num_threads, 1 << 16).run(kernel, a);
}

}  // namespace

void quantise_rows(const QuantisedArguments& a) {
  run(table_of<RowsTable>(a.isa).quantised.quantise[static_cast<int>(a.storage)], a);
}

void dequantise_rows(const QuantisedArguments& a) {
  run(table_of<RowsTable>(a.isa).quantised.dequantise[static_cast<int>(a.storage)], a);
}

}  // namespace hpcgnn::kernels
