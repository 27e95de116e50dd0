#include "dense/products.h"

#include <algorithm>

#include "dense/pieces.h"
#include "dense/widened.h"
#include "parallel.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

/// Rows of a task: whole tiles of every instruction set.
constexpr std::int64_t kTaskRows = 48;
/// Rows of a task of a product that widens rows, and rows that a contraction widens together.
constexpr std::int64_t kWidenedRows = 192, kContractedRows = 64;
/// Rows of a piece of a tall contraction.
constexpr std::int64_t kPieceRows = 1 << 13;
/// Rows that a product widens together: whole tiles, of about a third of a level-1 cache.
constexpr std::int64_t kTileRows = 12, kWidenedBytes = 1 << 14;

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
  return 2 * rows * inner * columns < kSerialOperations ? 1 : resolve_threads(requested);
}

/// total += upper^T rows by widened pieces that stay in cache.
void contract_widened(const ContractArguments& a, Storage upper_storage, Storage rows_storage,
                      Isa isa) {
  const auto kernel = table_of<ProductsTable>(isa).contract[place(Storage::kFloat32)];
  const Widened upper(upper_storage, isa, a.width, kContractedRows);
  const Widened rows(rows_storage, isa, a.columns, kContractedRows);
  for (std::int64_t start = 0; start < a.num_rows; start += kContractedRows) {
    ContractArguments part = a;
    part.num_rows = std::min(kContractedRows, a.num_rows - start);
    part.upper = upper.load(a.upper, start, part.num_rows);
    part.rows = rows.load(a.rows, start, part.num_rows);
    const std::int64_t next = std::min(start + kContractedRows, a.num_rows);
    const std::int64_t left = std::min(kContractedRows, a.num_rows - next);
    part.ahead[0] = {upper.at(a.upper, next), left * upper.row_bytes()};
    part.ahead[1] = {rows.at(a.rows, next), left * rows.row_bytes()};
    kernel(part, 0, a.width);
  }
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

void multiply_widened(const MultiplyArguments& a, Storage rows_storage, Storage out_storage,
                      int num_threads, Isa isa) {
  const auto kernel = table_of<ProductsTable>(isa).multiply[place(Storage::kFloat32)];
  const auto row_bytes = a.inner * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t tiles = kWidenedBytes / std::max<std::int64_t>(1, row_bytes * kTileRows);
  const std::int64_t together = std::clamp(tiles * kTileRows, kTileRows, kWidenedRows);
  const auto compute = [&](std::int64_t task) {
    const Widened rows(rows_storage, isa, a.inner, together);
    const Widened sums(out_storage, isa, a.columns, together);
    const std::int64_t last = std::min(a.num_rows, (task + 1) * kWidenedRows);
    for (std::int64_t first = task * kWidenedRows; first < last; first += together) {
      MultiplyArguments part = a;
      part.num_rows = std::min(together, last - first);
      part.rows = rows.load(a.rows, first, part.num_rows);
      if (a.from && !a.repeats) part.from = sums.load(a.from, first, part.num_rows);
      part.out = sums.room(a.out, first);
      part.ahead = rows.at(a.rows, first + part.num_rows);
      part.ahead_row_bytes = rows.row_bytes();
      kernel(part, 0, part.num_rows);
      sums.store(a.out, first, part.num_rows);
    }
  };
  parallel_tasks(threads_for(a.num_rows, a.inner, a.columns, num_threads),
                 (a.num_rows + kWidenedRows - 1) / kWidenedRows, compute);
}

void contract_tall(const ContractArguments& a, Storage upper, Storage rows_storage, int num_threads,
                   Isa isa) {
  const std::int64_t upper_bytes = storage_bytes(upper), rows_bytes = storage_bytes(rows_storage);
  const bool is_half = upper_bytes == 2 || rows_bytes == 2;
  const Storage sums = accumulator_of(upper);
  const auto kernel = table_of<ProductsTable>(isa).contract[place(sums)];
  const int threads = threads_for(a.num_rows, a.width, a.columns, num_threads);
  const Pieces pieces{a.num_rows, kPieceRows, a.width * a.pitch};
  const auto add = [&](std::int64_t first, std::int64_t last, void* total) {
    ContractArguments part = a;
    part.upper = static_cast<const char*>(a.upper) + first * a.width * upper_bytes;
    part.rows = static_cast<const char*>(a.rows) + first * a.columns * rows_bytes;
    part.total = total;
    part.num_rows = last - first;
    if (is_half)
      contract_widened(part, upper, rows_storage, isa);
    else
      kernel(part, 0, a.width);
  };
  if (sums == Storage::kFloat64)
    add_by_pieces(pieces, threads, static_cast<double*>(a.total), add);
  else
    add_by_pieces(pieces, threads, static_cast<float*>(a.total), add);
}

}  // namespace hpcgnn::kernels
