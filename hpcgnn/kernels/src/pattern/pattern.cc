#include "pattern/pattern.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "balance.h"
#include "parallel.h"

namespace hpcgnn::kernels {
namespace {

constexpr std::int64_t kSerialNonzeros = 1 << 15;

template <class T>
void transpose_values(const Pattern& a, const T* values, T* out) {
  std::vector<std::int64_t> cursor(a.indptr, a.indptr + a.num_rows);
  for (std::int64_t i = 0; i < a.num_rows; ++i)
    for (std::int64_t e = a.indptr[i]; e < a.indptr[i + 1]; ++e) {
      const std::int32_t j = a.indices[e];
      std::int64_t& position = cursor[static_cast<std::size_t>(j)];
      if (position == a.indptr[j + 1])
        throw std::invalid_argument("the pattern is not symmetric: column " + std::to_string(j) +
                                    " has more entries than row " + std::to_string(j));
      out[position++] = values[e];
    }
}

struct RowShare {
  std::int64_t first, last;
};

/// Writes the entries of some rows at the cursors of their columns.
template <class T, bool kValued>
void scatter_rows(const Pattern& a, RowShare rows, const void* values, std::int64_t* cursor,
                  const Transposed& out) {
  const T* const from = static_cast<const T*>(values);
  T* const to = static_cast<T*>(out.values);
  for (std::int64_t i = rows.first; i < rows.last; ++i)
    for (std::int64_t e = a.indptr[i]; e < a.indptr[i + 1]; ++e) {
      const std::int64_t position = cursor[a.indices[e]]++;
      out.indices[position] = static_cast<std::int32_t>(i);
      if constexpr (kValued) to[position] = from[e];
      if (out.source != nullptr) out.source[position] = e;
    }
}

}  // namespace

void transpose_csr(const Pattern& a, const void* values, int element_bytes, const Transposed& out,
                   int num_threads) {
  const std::int64_t nonzeros = a.indptr[a.num_rows];
  // Each thread has a cursor for every column; all of them must not outgrow the matrix itself.
  const std::int64_t affordable = std::max<std::int64_t>(1, nonzeros / (a.num_columns + 1));
  const std::int64_t threads =
      nonzeros < kSerialNonzeros ? 1
                                 : std::min<std::int64_t>(resolve_threads(num_threads), affordable);
  const std::vector<std::int64_t> bounds = balanced_rows(a.indptr, a.num_rows, threads, 1);
  const std::size_t columns = static_cast<std::size_t>(a.num_columns);
  std::vector<std::int64_t> cursor(columns * static_cast<std::size_t>(threads), 0);

  parallel_tasks(static_cast<int>(threads), threads, [&](std::int64_t task) {
    std::int64_t* const mine = cursor.data() + static_cast<std::size_t>(task) * columns;
    const std::size_t share = static_cast<std::size_t>(task);
    for (std::int64_t e = a.indptr[bounds[share]]; e < a.indptr[bounds[share + 1]]; ++e)
      ++mine[a.indices[e]];
  });
  std::int64_t total = 0;
  for (std::size_t c = 0; c < columns; ++c) {
    out.indptr[c] = total;
    for (std::size_t t = 0; t < static_cast<std::size_t>(threads); ++t) {
      const std::int64_t count = cursor[t * columns + c];
      cursor[t * columns + c] = total;
      total += count;
    }
  }
  out.indptr[columns] = total;
  parallel_tasks(static_cast<int>(threads), threads, [&](std::int64_t task) {
    std::int64_t* const mine = cursor.data() + static_cast<std::size_t>(task) * columns;
    const std::size_t share = static_cast<std::size_t>(task);
    const RowShare rows{bounds[share], bounds[share + 1]};
    if (values == nullptr)
      scatter_rows<std::int32_t, false>(a, rows, nullptr, mine, out);
    else if (element_bytes == 8)
      scatter_rows<std::int64_t, true>(a, rows, values, mine, out);
    else
      scatter_rows<std::int32_t, true>(a, rows, values, mine, out);
  });
}

void transpose_values_symmetric(const Pattern& a, const void* values, int element_bytes,
                                void* out) {
  if (element_bytes == 8)
    transpose_values(a, static_cast<const std::int64_t*>(values), static_cast<std::int64_t*>(out));
  else
    transpose_values(a, static_cast<const std::int32_t*>(values), static_cast<std::int32_t*>(out));
}

void check_indptr(const std::int64_t* indptr, std::int64_t num_rows, std::int64_t num_nonzeros) {
  if (indptr[0] != 0) throw std::invalid_argument("indptr must start at 0");
  bool decreases = false;
  for (std::int64_t i = 0; i < num_rows; ++i) decreases |= indptr[i + 1] < indptr[i];
  if (decreases) throw std::invalid_argument("indptr must not decrease");
  if (indptr[num_rows] != num_nonzeros)
    throw std::invalid_argument("indptr ends at " + std::to_string(indptr[num_rows]) +
                                " but there are " + std::to_string(num_nonzeros) + " indices");
}

void check_range(const char* name, const std::int32_t* indices, std::int64_t count,
                 std::int64_t limit) {
  // The sign bit of a number is set if it is negative, and that of its distance from the last one
  // if it is beyond: simple operations, which vectors of any processor have.
  const std::int64_t most = std::numeric_limits<std::int32_t>::max();
  const auto last = static_cast<std::uint32_t>(std::min(limit - 1, most));
  std::uint32_t signs = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::uint32_t>(indices[i]);
    signs |= index | (last - index);
  }
  if (signs >> 31 == 0) return;
  const auto [low, high] = std::minmax_element(indices, indices + count);
  throw std::invalid_argument(std::string(name) + " holds " +
                              std::to_string(*low < 0 ? *low : *high) + ", outside [0, " +
                              std::to_string(limit) + ")");
}

void check_sorted(const std::int64_t* indptr, const std::int32_t* indices, std::int64_t num_rows) {
  for (std::int64_t i = 0; i < num_rows; ++i)
    for (std::int64_t e = indptr[i] + 1; e < indptr[i + 1]; ++e)
      if (indices[e - 1] >= indices[e])
        throw std::invalid_argument("row " + std::to_string(i) +
                                    " has columns that are repeated or not in ascending order");
}

namespace {

/// Calls `visit(entry, new column)` for the kept entries of row i, in order.
template <bool kMarked, class Visit>
void visit_row(const Selection& s, std::int64_t i, Visit&& visit) {
  for (std::int64_t e = s.indptr[i]; e < s.indptr[i + 1]; ++e) {
    const std::int32_t column = s.columns[s.indices[e]];
    if constexpr (kMarked)
      visit(e, column, column >= 0 && s.entries[e]);
    else
      visit(e, column, column >= 0);
  }
}

template <bool kMarked>
void count(const Selection& s, std::int64_t* counts) {
  for (std::int64_t i = 0; i < s.num_rows; ++i) {
    counts[i] = 0;
    if (s.rows != nullptr && !s.rows[i]) continue;
    visit_row<kMarked>(s, i, [&](std::int64_t, std::int32_t, bool kept) { counts[i] += kept; });
  }
}

template <class T, bool kMarked, bool kValued>
void copy(const Selection& s, const void* values, const Selected& out) {
  const T* const from = static_cast<const T*>(values);
  T* const to = static_cast<T*>(out.values);
  std::int64_t position = 0;
  for (std::int64_t i = 0; i < s.num_rows; ++i) {
    if (s.rows != nullptr && !s.rows[i]) continue;
    visit_row<kMarked>(s, i, [&](std::int64_t e, std::int32_t column, bool kept) {
      if (!kept) return;
      out.indices[position] = column;
      if constexpr (kValued) to[position] = from[e];
      ++position;
    });
  }
}

template <bool kMarked>
void copy_any(const Selection& s, const void* values, int element_bytes, const Selected& out) {
  if (values == nullptr)
    copy<std::int32_t, kMarked, false>(s, values, out);
  else if (element_bytes == 8)
    copy<std::int64_t, kMarked, true>(s, values, out);
  else
    copy<std::int32_t, kMarked, true>(s, values, out);
}

}  // namespace

void count_selected(const Selection& s, std::int64_t* counts) {
  if (s.entries != nullptr)
    count<true>(s, counts);
  else
    count<false>(s, counts);
}

void copy_selected(const Selection& s, const void* values, int element_bytes, const Selected& out) {
  if (s.entries != nullptr)
    copy_any<true>(s, values, element_bytes, out);
  else
    copy_any<false>(s, values, element_bytes, out);
}

}  // namespace hpcgnn::kernels
