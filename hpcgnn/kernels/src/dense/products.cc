#include "dense/products.h"

#include <algorithm>

#include "parallel.h"
#include "rows/rows.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

/// With fewer operations, threads cost more than they save.
constexpr std::int64_t kSerial = 1 << 20;
/// Rows of a task: whole tiles of every instruction set.
constexpr std::int64_t kTaskRows = 48;
/// Rows that are widened together.
constexpr std::int64_t kWidenedRows = 192;
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

/// Memory for a few rows in float32, and what they are in 16 bits.
class Widened {
 public:
  Widened(Storage storage, Isa isa, std::int64_t width)
      : widen_(table_of<RowsTable>(isa).convert[static_cast<int>(storage)][kWide]),
        narrow_(table_of<RowsTable>(isa).convert[kWide][static_cast<int>(storage)]),
        width_(width),
        numbers_(kWidenedRows * width * static_cast<std::int64_t>(sizeof(float))) {}

  void* get() const { return numbers_.get(); }

  /// Read `count` rows from row `first` on.
  const void* load(const void* rows, std::int64_t first, std::int64_t count) const {
    const auto* const source = static_cast<const std::uint16_t*>(rows) + first * width_;
    // The rows lie side by side: they are converted as one.
    widen_({source, nullptr, get(), 1, count * width_}, 0, 1);
    return get();
  }

  void store(void* rows, std::int64_t first, std::int64_t count) const {
    auto* const out = static_cast<std::uint16_t*>(rows) + first * width_;
    narrow_({get(), nullptr, out, 1, count * width_}, 0, 1);
  }

 private:
  static constexpr int kWide = static_cast<int>(Storage::kFloat32);
  RowsTable::Kernel widen_, narrow_;
  std::int64_t width_;
  Buffer numbers_;
};

/// total += upper^T rows by widened pieces that stay in the level-2 cache.
void contract_half(const ContractArguments& a, Storage half, Isa isa) {
  const auto kernel = table_of<ProductsTable>(isa).contract[place(Storage::kFloat32)];
  const Widened upper(half, isa, a.width), rows(half, isa, a.columns);
  for (std::int64_t start = 0; start < a.num_rows; start += kWidenedRows) {
    ContractArguments part = a;
    part.num_rows = std::min(kWidenedRows, a.num_rows - start);
    part.upper = upper.load(a.upper, start, part.num_rows);
    part.rows = rows.load(a.rows, start, part.num_rows);
    kernel(part, 0, a.width);
  }
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

void multiply_half(const MultiplyArguments& a, Storage half, int num_threads, Isa isa) {
  const auto kernel = table_of<ProductsTable>(isa).multiply[place(Storage::kFloat32)];
  const auto compute = [&](std::int64_t task) {
    const std::int64_t first = task * kWidenedRows;
    const std::int64_t count = std::min(kWidenedRows, a.num_rows - first);
    const Widened rows(half, isa, a.inner), sums(half, isa, a.columns);
    MultiplyArguments part = a;
    part.rows = rows.load(a.rows, first, count);
    part.from = a.from ? sums.load(a.from, first, count) : nullptr;
    part.out = sums.get();
    part.num_rows = count;
    for (std::int64_t i = 0; i < count; i += kTaskRows)
      kernel(part, i, std::min(count, i + kTaskRows));
    sums.store(a.out, first, count);
  };
  parallel_tasks(threads_for(a.num_rows, a.inner, a.columns, num_threads),
                 (a.num_rows + kWidenedRows - 1) / kWidenedRows, compute);
}

void contract_tall(const ContractArguments& a, Storage storage, int num_threads, Isa isa) {
  const bool is_half = storage_bytes(storage) == 2;
  const Storage sums = is_half ? Storage::kFloat32 : storage;
  const std::int64_t size = a.width * a.pitch, bytes = storage_bytes(sums);
  const auto kernel = table_of<ProductsTable>(isa).contract[place(sums)];
  const auto run = [&](const ContractArguments& part) {
    if (is_half)
      contract_half(part, storage, isa);
    else
      kernel(part, 0, a.width);
  };
  const std::int64_t most = std::min(kMostPieces, kPieceElements / std::max<std::int64_t>(1, size));
  const std::int64_t count = std::min(most, (a.num_rows + kPieceRows - 1) / kPieceRows);
  if (count <= 1) {
    run(a);
    return;
  }
  const std::int64_t rows = (a.num_rows + count - 1) / count;
  const Buffer pieces(count * size * bytes);
  char* const totals = static_cast<char*>(pieces.get());
  const std::int64_t row_bytes = storage_bytes(storage);
  const auto compute = [&](std::int64_t piece) {
    ContractArguments part = a;
    const std::int64_t first = std::min(a.num_rows, piece * rows);
    part.upper = static_cast<const char*>(a.upper) + first * a.width * row_bytes;
    part.rows = static_cast<const char*>(a.rows) + first * a.columns * row_bytes;
    part.total = totals + piece * size * bytes;
    part.num_rows = std::min(rows, a.num_rows - first);
    std::fill_n(static_cast<char*>(part.total), size * bytes, '\0');
    run(part);
  };
  parallel_tasks(threads_for(a.num_rows, a.width, a.columns, num_threads), count, compute);
  if (sums == Storage::kFloat64)
    add_pieces(static_cast<const double*>(pieces.get()), count, size,
               static_cast<double*>(a.total));
  else
    add_pieces(static_cast<const float*>(pieces.get()), count, size, static_cast<float*>(a.total));
}

}  // namespace hpcgnn::kernels
