/// The input: the pattern of a square sparse matrix.
#pragma once

#include <cstdint>
#include <span>

namespace hpcgnn::volpart {

/// Row i of the matrix lists the nodes that node i reads. The caller owns the arrays; they are read
/// in place. Columns may be unsorted and repeated; a diagonal entry costs no communication.
class CsrView {
 public:
  CsrView(std::span<const std::int64_t> indptr, std::span<const std::int32_t> indices)
      : _indptr(indptr), _narrow(indices) {}
  CsrView(std::span<const std::int64_t> indptr, std::span<const std::int64_t> indices)
      : _indptr(indptr), _wide(indices) {}

  std::int64_t num_rows() const { return static_cast<std::int64_t>(_indptr.size()) - 1; }
  std::int64_t num_nonzeros() const { return static_cast<std::int64_t>(size()); }
  std::int64_t row_begin(std::int64_t row) const { return _indptr[static_cast<std::size_t>(row)]; }
  std::int64_t row_end(std::int64_t row) const { return row_begin(row + 1); }
  std::int64_t column(std::int64_t position) const {
    const auto k = static_cast<std::size_t>(position);
    return _wide.data() ? _wide[k] : _narrow[k];
  }

  /// Check everything that later phases assume: at least one offset, offsets that start at 0,
  /// never decrease and end at the number of indices, columns in [0, num_rows), and at most
  /// 2^31 - 1 rows and 2^32 - 1 non-zeros.
  /// @throws std::invalid_argument naming the first fault. O(rows + non-zeros).
  void check() const;

 private:
  std::size_t size() const { return _wide.data() ? _wide.size() : _narrow.size(); }

  std::span<const std::int64_t> _indptr;
  std::span<const std::int32_t> _narrow;
  std::span<const std::int64_t> _wide;
};

}  // namespace hpcgnn::volpart
