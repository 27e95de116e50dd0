#include "select.h"

namespace hpcgnn::kernels {
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
