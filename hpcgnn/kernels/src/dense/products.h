/// Dense products of rows with small matrices: those of a chain of maps, and of narrow layers.
///
/// A tile of sums stays in registers during one pass over a panel of the matrix, which fits the
/// level-1 cache: 2 operations for each row and element of the panel, and one load of the element
/// for all rows of a tile. The bits of a row depend only on the row and the matrix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "types.h"

namespace hpcgnn::kernels {

/// out = from + rows matrix, for contiguous rows and a matrix in panels.
struct MultiplyArguments {
  const void* rows;    ///< num_rows by inner
  const void* panels;  ///< see `pack`
  const void* from;    ///< num_rows by columns, and may be out; null = zeros
  void* out;           ///< num_rows by columns
  std::int64_t num_rows, inner, columns;
  bool repeats = false;         ///< `from` is one row, for all
  const void* ahead = nullptr;  ///< rows that will be read next; null = those behind `rows`
  std::int64_t ahead_row_bytes = 0;
};

/// Memory that will be read next.
struct Unread {
  const void* data = nullptr;
  std::int64_t bytes = 0;
};

/// total += upper^T rows, the gradient of a matrix.
struct ContractArguments {
  const void* upper;  ///< num_rows by width
  const void* rows;   ///< num_rows by columns
  void* total;        ///< width by columns, `pitch` elements from one row to the next
  std::int64_t num_rows, width, columns, pitch;
  Unread ahead[2] = {};  ///< what will be read next; null = the rows behind `upper` and `rows`
};

/// Kernels by storage type, float32 and float64: for rows [first, last), and for rows [first, last)
/// of `total`. `panel` is the number of columns of a panel.
struct ProductsTable {
  void (*multiply[2])(const MultiplyArguments&, std::int64_t first, std::int64_t last);
  void (*contract[2])(const ContractArguments&, std::int64_t first, std::int64_t last);
  int panel[2];

  static const ProductsTable portable, avx2, avx512;  ///< see table_of
};

/// A matrix, or a part of its columns, transposed or not.
struct MatrixView {
  const void* data;
  std::int64_t inner, columns;               ///< of the product
  std::int64_t inner_stride, column_stride;  ///< elements
};

/// Bytes that begin on a cache line.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t bytes)
      : data_(std::aligned_alloc(64, static_cast<std::size_t>((bytes + 64) / 64 * 64))) {
    if (!data_) throw std::bad_alloc();
  }
  void* get() const { return data_.get(); }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> data_;
};

/// A matrix in panels of columns, the last one filled up with zeros.
Buffer pack(const MatrixView& matrix, Storage storage, Isa isa);

void multiply(const MultiplyArguments& arguments, Storage storage, int num_threads, Isa isa);
void contract(const ContractArguments& arguments, Storage storage, int num_threads, Isa isa);

/// As `multiply` with a float32 matrix, where rows, or the result, or both may have 16 bits a
/// number: a few rows at a time are widened. `from` is like the result, or a float32 row for all.
void multiply_widened(const MultiplyArguments& arguments, Storage rows, Storage out,
                      int num_threads, Isa isa);

/// As `contract`, where threads share the rows; pieces of rows are summed in order, so that the
/// bits depend on the sizes only. Either operand may have 16 bits a number: the total is float32.
/// @pre The total is contiguous.
void contract_tall(const ContractArguments& arguments, Storage upper, Storage rows, int num_threads,
                   Isa isa);

}  // namespace hpcgnn::kernels
