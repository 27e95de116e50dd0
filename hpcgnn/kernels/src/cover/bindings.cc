#include "bindings.h"

#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <tuple>

#include "cover/cover.h"
#include "pattern/pattern.h"

namespace hpcgnn::kernels {
namespace {

using Mask = Vector<bool>;
using Counts = Vector<std::int64_t>;

void check_column_starts(const std::int64_t* starts, std::int64_t num_blocks) {
  if (starts[0] != 0) throw std::invalid_argument("column_starts must start at 0");
  for (std::int64_t q = 0; q < num_blocks; ++q)
    if (starts[q + 1] < starts[q]) throw std::invalid_argument("column_starts must not decrease");
}

Pattern checked_pattern(const Offsets& indptr, const Indices& columns,
                        const Offsets& column_starts) {
  if (indptr.size() == 0) throw std::invalid_argument("indptr must not be empty");
  if (column_starts.size() == 0) throw std::invalid_argument("column_starts must not be empty");
  const auto num_blocks = static_cast<std::int64_t>(column_starts.size()) - 1;
  const Pattern a{indptr.data(), columns.data(), static_cast<std::int64_t>(indptr.size()) - 1,
                  column_starts.data()[num_blocks]};
  const auto nonzeros = static_cast<std::int64_t>(columns.size());
  check_column_starts(column_starts.data(), num_blocks);
  check_indptr(a.indptr, a.num_rows, nonzeros);
  check_range("columns", a.indices, nonzeros, a.num_columns);
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (a.num_columns > kMost || a.num_rows > kMost - a.num_columns)
    throw std::invalid_argument("rows and columns together must be fewer than 2^31");
  return a;
}

std::tuple<Mask, Mask, Counts, Counts, Counts> py_vertex_cover(const Offsets& indptr,
                                                               const Indices& columns,
                                                               const Offsets& column_starts,
                                                               std::int64_t limit, int threads) {
  const Pattern a = checked_pattern(indptr, columns, column_starts);
  const std::int64_t num_blocks = extent(column_starts, 0) - 1;
  Mask fetched = new_vector<bool>(a.num_columns);
  Mask pushed = new_vector<bool>(extent(columns, 0));
  Counts fetched_rows = new_vector<std::int64_t>(num_blocks);
  Counts pushed_rows = new_vector<std::int64_t>(num_blocks);
  Counts lower_bound = new_vector<std::int64_t>(num_blocks);
  {
    nb::gil_scoped_release unlocked;
    vertex_cover(a, column_starts.data(), num_blocks, limit, threads,
                 {fetched.data(), pushed.data(), fetched_rows.data(), pushed_rows.data(),
                  lower_bound.data()});
  }
  return {fetched, pushed, fetched_rows, pushed_rows, lower_bound};
}

}  // namespace

void bind_cover(nb::module_& m) {
  define(m, &py_vertex_cover,
         "def vertex_cover(indptr: NDArray[numpy.int64], columns: NDArray[numpy.int32], "
         "column_starts: NDArray[numpy.int64], limit: int, threads: int) "
         "-> tuple[NDArray[numpy.bool_], NDArray[numpy.bool_], NDArray[numpy.int64], "
         "NDArray[numpy.int64], NDArray[numpy.int64]]");
}

}  // namespace hpcgnn::kernels
