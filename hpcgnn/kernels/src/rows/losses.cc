#include "rows/losses.h"

#include "parallel.h"
#include "rows/rows.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

// Smaller than kSerialElements, since an exponential takes as long as several other operations.
constexpr std::int64_t kSerialLosses = 1 << 13;

/// Runs kernels of a table on chunks of rows.
template <class Table, class Arguments>
void run(Table RowsTable::* table, const Arguments& a) {
  const auto& t = a.targets;
  const auto kernel = (table_of<RowsTable>(t.isa).*table).loss[static_cast<int>(t.storage)];
  RowChunks(t.num_rows, t.width, t.num_threads, 1 << 15, kSerialLosses).run(kernel, a);
}

}  // namespace

void softmax_loss(const SoftmaxLoss& a) { run(&RowsTable::softmax_loss, a); }

void sigmoid_loss(const SigmoidLoss& a) { run(&RowsTable::sigmoid_loss, a); }

}  // namespace hpcgnn::kernels
