#include "chain/products.h"

#include <algorithm>

#include "parallel.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

/// With fewer operations, threads cost more than they save.
constexpr std::int64_t kSerial = 1 << 20;
/// Rows of a task: whole tiles of every instruction set.
constexpr std::int64_t kTaskRows = 48;

int place(Storage storage) { return storage == Storage::kFloat64 ? 1 : 0; }

template <class T>
void fill_panels(const MatrixView& m, int panel, T* out) {
  const T* const data = static_cast<const T*>(m.data);
  for (std::int64_t c = 0; c < m.columns; c += panel, out += m.inner * panel) {
    const std::int64_t count = std::min<std::int64_t>(panel, m.columns - c);
    const T* const first = data + c * m.column_stride;
    for (std::int64_t k = 0; k < m.inner; ++k) {
      for (std::int64_t j = 0; j < count; ++j)
        out[k * panel + j] = first[k * m.inner_stride + j * m.column_stride];
      std::fill(out + k * panel + count, out + (k + 1) * panel, T(0));
    }
  }
}

template <class Body>
void in_tasks(std::int64_t count, std::int64_t operations, int num_threads, const Body& body) {
  const int threads = operations < kSerial ? 1 : resolve_threads(num_threads);
  if (threads == 1) {
    body(std::int64_t{0}, count);
    return;
  }
  parallel_tasks(threads, (count + kTaskRows - 1) / kTaskRows, [&](std::int64_t task) {
    body(task * kTaskRows, std::min(count, (task + 1) * kTaskRows));
  });
}

}  // namespace

Buffer pack(const MatrixView& m, Storage storage, Isa isa) {
  const int panel = table_of<ProductsTable>(isa).panel[place(storage)];
  const std::int64_t width = (m.columns + panel - 1) / panel * panel;
  Buffer out(m.inner * width * storage_bytes(storage));
  if (storage == Storage::kFloat64)
    fill_panels(m, panel, static_cast<double*>(out.get()));
  else
    fill_panels(m, panel, static_cast<float*>(out.get()));
  return out;
}

void multiply(const MultiplyArguments& a, Storage storage, int num_threads, Isa isa) {
  const auto kernel = table_of<ProductsTable>(isa).multiply[place(storage)];
  in_tasks(a.num_rows, 2 * a.num_rows * a.inner * a.columns, num_threads,
           [&](std::int64_t first, std::int64_t last) { kernel(a, first, last); });
}

void contract(const ContractArguments& a, Storage storage, int num_threads, Isa isa) {
  const auto kernel = table_of<ProductsTable>(isa).contract[place(storage)];
  in_tasks(a.width, 2 * a.num_rows * a.width * a.columns, num_threads,
           [&](std::int64_t first, std::int64_t last) { kernel(a, first, last); });
}

}  // namespace hpcgnn::kernels
