#include "volpart/csr.h"

#include <limits>
#include <stdexcept>
#include <string>

#include "checks.h"

namespace hpcgnn::volpart {
namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

}  // namespace

void CsrView::check() const {
  require(!_indptr.empty(), "indptr is empty: it needs one offset more than there are rows");
  require(_indptr.front() == 0,
          "indptr starts at " + std::to_string(_indptr.front()) + ", not at 0");
  require(num_rows() <= std::numeric_limits<std::int32_t>::max(),
          std::to_string(num_rows()) + " rows pass the limit 2147483647");
  require(num_nonzeros() <= std::numeric_limits<std::uint32_t>::max(),
          std::to_string(num_nonzeros()) + " non-zeros pass the limit 4294967295");
  for (std::int64_t row = 0; row < num_rows(); ++row)
    if (row_begin(row) > row_end(row)) fail("indptr decreases at row " + std::to_string(row));
  require(_indptr.back() == num_nonzeros(), "indptr ends at " + std::to_string(_indptr.back()) +
                                                " but there are " + std::to_string(num_nonzeros()) +
                                                " indices");
  for (std::int64_t position = 0; position < num_nonzeros(); ++position)
    if (column(position) < 0 || column(position) >= num_rows())
      fail("column " + std::to_string(column(position)) + " at position " +
           std::to_string(position) + " is outside [0, " + std::to_string(num_rows()) + ")");
}

}  // namespace hpcgnn::volpart
