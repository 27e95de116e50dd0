#include "transpose.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "balance.h"
#include "parallel.h"

namespace hpcgnn::kernels {
namespace {

constexpr std::int64_t kSerialNonzeros = 1 << 15;
constexpr std::int64_t kChunk = 1 << 16;

template <class T>
void permute(const T* values, const std::int64_t* source, std::int64_t count, T* out,
             int num_threads) {
  parallel_tasks(num_threads, (count + kChunk - 1) / kChunk, [&](std::int64_t task) {
    const std::int64_t last = std::min(count, (task + 1) * kChunk);
    for (std::int64_t i = task * kChunk; i < last; ++i) out[i] = values[source[i]];
  });
}

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

}  // namespace

void transpose_csr(const Pattern& a, std::int64_t* out_indptr, std::int32_t* out_indices,
                   std::int64_t* source, int num_threads) {
  const std::int64_t nonzeros = a.indptr[a.num_rows];
  // Each thread owns a cursor per column, which must not outgrow the matrix itself.
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
    out_indptr[c] = total;
    for (std::size_t t = 0; t < static_cast<std::size_t>(threads); ++t) {
      const std::int64_t count = cursor[t * columns + c];
      cursor[t * columns + c] = total;
      total += count;
    }
  }
  out_indptr[columns] = total;
  parallel_tasks(static_cast<int>(threads), threads, [&](std::int64_t task) {
    std::int64_t* const mine = cursor.data() + static_cast<std::size_t>(task) * columns;
    const std::size_t share = static_cast<std::size_t>(task);
    for (std::int64_t i = bounds[share]; i < bounds[share + 1]; ++i)
      for (std::int64_t e = a.indptr[i]; e < a.indptr[i + 1]; ++e) {
        const std::int64_t position = mine[a.indices[e]]++;
        out_indices[position] = static_cast<std::int32_t>(i);
        if (source != nullptr) source[position] = e;
      }
  });
}

void permute_values(const void* values, const std::int64_t* source, std::int64_t count,
                    int element_bytes, void* out, int num_threads) {
  const int threads = count < kSerialNonzeros ? 1 : resolve_threads(num_threads);
  if (element_bytes == 8)
    permute(static_cast<const std::int64_t*>(values), source, count,
            static_cast<std::int64_t*>(out), threads);
  else
    permute(static_cast<const std::int32_t*>(values), source, count,
            static_cast<std::int32_t*>(out), threads);
}

void transpose_values_symmetric(const Pattern& a, const void* values, int element_bytes,
                                void* out) {
  if (element_bytes == 8)
    transpose_values(a, static_cast<const std::int64_t*>(values), static_cast<std::int64_t*>(out));
  else
    transpose_values(a, static_cast<const std::int32_t*>(values), static_cast<std::int32_t*>(out));
}

}  // namespace hpcgnn::kernels
