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
/// Rows that are widened together, in a product and in a contraction.
constexpr std::int64_t kWidenedRows = 192, kContractedRows = 64;
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

/// A few rows at a time in float32, of rows that may have 16 bits a number.
class Widened {
 public:
  Widened(Storage storage, Isa isa, std::int64_t width)
      : is_half_(storage_bytes(storage) == 2), width_(width) {
    if (!is_half_) return;
    widen_ = table_of<RowsTable>(isa).convert[static_cast<int>(storage)][kWide];
    narrow_ = table_of<RowsTable>(isa).convert[kWide][static_cast<int>(storage)];
    numbers_ = Buffer(kWidenedRows * width * static_cast<std::int64_t>(sizeof(float)));
  }

  std::int64_t row_bytes() const { return width_ * (is_half_ ? 2 : 4); }

  /// The rows from `first` on, as they are stored.
  const void* at(const void* rows, std::int64_t first) const {
    return static_cast<const char*>(rows) + first * row_bytes();
  }

  /// Read `count` rows from row `first` on.
  const void* load(const void* rows, std::int64_t first, std::int64_t count) const {
    if (!is_half_) return at(rows, first);
    // The rows lie side by side: they are converted as one.
    widen_({at(rows, first), nullptr, numbers_.get(), 1, count * width_}, 0, 1);
    return numbers_.get();
  }

  /// Where to write rows from row `first` on, before `store`.
  void* room(void* rows, std::int64_t first) const {
    return is_half_ ? numbers_.get() : const_cast<void*>(at(rows, first));
  }

  void store(void* rows, std::int64_t first, std::int64_t count) const {
    if (is_half_)
      narrow_({numbers_.get(), nullptr, const_cast<void*>(at(rows, first)), 1, count * width_}, 0,
              1);
  }

 private:
  static constexpr int kWide = static_cast<int>(Storage::kFloat32);
  RowsTable::Kernel widen_ = nullptr, narrow_ = nullptr;
  bool is_half_;
  std::int64_t width_;
  Buffer numbers_;
};

/// total += upper^T rows by widened pieces that stay in cache.
void contract_widened(const ContractArguments& a, Storage upper_storage, Storage rows_storage,
                      Isa isa) {
  const auto kernel = table_of<ProductsTable>(isa).contract[place(Storage::kFloat32)];
  const Widened upper(upper_storage, isa, a.width), rows(rows_storage, isa, a.columns);
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

void multiply_widened(const MultiplyArguments& a, Storage rows_storage, Storage out_storage,
                      int num_threads, Isa isa) {
  const auto kernel = table_of<ProductsTable>(isa).multiply[place(Storage::kFloat32)];
  const auto compute = [&](std::int64_t task) {
    const std::int64_t first = task * kWidenedRows;
    const std::int64_t count = std::min(kWidenedRows, a.num_rows - first);
    const Widened rows(rows_storage, isa, a.inner), sums(out_storage, isa, a.columns);
    MultiplyArguments part = a;
    part.rows = rows.load(a.rows, first, count);
    if (a.from && !a.repeats) part.from = sums.load(a.from, first, count);
    part.out = sums.room(a.out, first);
    part.num_rows = count;
    part.ahead = rows.at(a.rows, first + count);
    part.ahead_row_bytes = rows.row_bytes();
    for (std::int64_t i = 0; i < count; i += kTaskRows)
      kernel(part, i, std::min(count, i + kTaskRows));
    sums.store(a.out, first, count);
  };
  parallel_tasks(threads_for(a.num_rows, a.inner, a.columns, num_threads),
                 (a.num_rows + kWidenedRows - 1) / kWidenedRows, compute);
}

void contract_tall(const ContractArguments& a, Storage upper, Storage rows_storage, int num_threads,
                   Isa isa) {
  const std::int64_t upper_bytes = storage_bytes(upper), rows_bytes = storage_bytes(rows_storage);
  const bool is_half = upper_bytes == 2 || rows_bytes == 2;
  const Storage sums = accumulator_of(upper);
  const std::int64_t size = a.width * a.pitch, bytes = storage_bytes(sums);
  const auto kernel = table_of<ProductsTable>(isa).contract[place(sums)];
  const auto run = [&](const ContractArguments& part) {
    if (is_half)
      contract_widened(part, upper, rows_storage, isa);
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
  const auto compute = [&](std::int64_t piece) {
    ContractArguments part = a;
    const std::int64_t first = std::min(a.num_rows, piece * rows);
    part.upper = static_cast<const char*>(a.upper) + first * a.width * upper_bytes;
    part.rows = static_cast<const char*>(a.rows) + first * a.columns * rows_bytes;
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
