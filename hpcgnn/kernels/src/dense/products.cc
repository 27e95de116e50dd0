#include "dense/products.h"

#include <algorithm>

#include "parallel.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

/// With fewer operations, threads cost more than they save.
constexpr std::int64_t kSerial = 1 << 20;
/// Rows of a task: whole tiles of every instruction set.
constexpr std::int64_t kTaskRows = 48;
/// Rows of a piece of a tall contraction, and bounds on the pieces and on the numbers of their
/// sums.
constexpr std::int64_t kPieceRows = 1 << 13, kMostPieces = 64, kPieceElements = 1 << 20;

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

int threads_for(std::int64_t rows, std::int64_t inner, std::int64_t columns, int requested) {
  return 2 * rows * inner * columns < kSerial ? 1 : resolve_threads(requested);
}

template <class T>
void add_pieces(const T* pieces, std::int64_t count, std::int64_t size, T* total) {
  for (std::int64_t piece = 0; piece < count; ++piece, pieces += size)
    for (std::int64_t k = 0; k < size; ++k) total[k] += pieces[k];
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
  // Also on one thread: the rows of a task are read again for each panel.
  parallel_tasks(threads_for(a.num_rows, a.inner, a.columns, num_threads),
                 (a.num_rows + kTaskRows - 1) / kTaskRows, [&](std::int64_t task) {
                   kernel(a, task * kTaskRows, std::min(a.num_rows, (task + 1) * kTaskRows));
                 });
}

void contract(const ContractArguments& a, Storage storage, int num_threads, Isa isa) {
  const auto kernel = table_of<ProductsTable>(isa).contract[place(storage)];
  const int threads = threads_for(a.num_rows, a.width, a.columns, num_threads);
  if (threads == 1) {
    kernel(a, 0, a.width);
    return;
  }
  parallel_tasks(threads, (a.width + kTaskRows - 1) / kTaskRows, [&](std::int64_t task) {
    kernel(a, task * kTaskRows, std::min(a.width, (task + 1) * kTaskRows));
  });
}

void contract_tall(const ContractArguments& a, Storage storage, int num_threads, Isa isa) {
  const std::int64_t size = a.width * a.pitch, bytes = storage_bytes(storage);
  const std::int64_t most = std::min(kMostPieces, kPieceElements / std::max<std::int64_t>(1, size));
  const std::int64_t count = std::min(most, (a.num_rows + kPieceRows - 1) / kPieceRows);
  if (count <= 1) {
    contract(a, storage, num_threads, isa);
    return;
  }
  const auto kernel = table_of<ProductsTable>(isa).contract[place(storage)];
  const std::int64_t rows = (a.num_rows + count - 1) / count;
  const Buffer pieces(count * size * bytes);
  char* const totals = static_cast<char*>(pieces.get());
  parallel_tasks(threads_for(a.num_rows, a.width, a.columns, num_threads), count,
                 [&](std::int64_t piece) {
                   ContractArguments part = a;
                   const std::int64_t first = std::min(a.num_rows, piece * rows);
                   part.upper = static_cast<const char*>(a.upper) + first * a.width * bytes;
                   part.rows = static_cast<const char*>(a.rows) + first * a.columns * bytes;
                   part.total = totals + piece * size * bytes;
                   part.num_rows = std::min(rows, a.num_rows - first);
                   std::fill_n(static_cast<char*>(part.total), size * bytes, '\0');
                   kernel(part, 0, a.width);
                 });
  if (storage == Storage::kFloat64)
    add_pieces(static_cast<const double*>(pieces.get()), count, size,
               static_cast<double*>(a.total));
  else
    add_pieces(static_cast<const float*>(pieces.get()), count, size, static_cast<float*>(a.total));
}

}  // namespace hpcgnn::kernels
