/// A few rows at a time in float32, of rows that may have 16 bits a number.
#pragma once

#include "dense/products.h"
#include "rows/rows.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {

class Widened {
 public:
  Widened(Storage storage, Isa isa, std::int64_t width, std::int64_t most_rows)
      : is_half_(storage_bytes(storage) == 2), row_bytes_(width * storage_bytes(storage)) {
    if (!is_half_) return;
    width_ = width;
    widen_ = table_of<RowsTable>(isa).convert[static_cast<int>(storage)][kWide];
    narrow_ = table_of<RowsTable>(isa).convert[kWide][static_cast<int>(storage)];
    numbers_ = Buffer(most_rows * width * static_cast<std::int64_t>(sizeof(float)));
  }

  std::int64_t row_bytes() const { return row_bytes_; }

  /// The rows from `first` on, as they are stored.
  const void* at(const void* rows, std::int64_t first) const {
    return static_cast<const char*>(rows) + first * row_bytes_;
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
  std::int64_t row_bytes_, width_ = 0;
  Buffer numbers_;
};

}  // namespace hpcgnn::kernels
