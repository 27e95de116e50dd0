#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/attention.h"
#include "parallel.h"
#include "simd/half.h"

namespace hpcgnn::kernels {
namespace {

template <class T>
constexpr T kNone = -std::numeric_limits<T>::infinity();

/// Calls body(row, head, row * num_heads + head) for all rows and heads; a task is a chunk of rows.
template <class Body>
void for_heads(const StateShape& shape, int num_threads, const Body& body) {
  const std::int64_t width = std::max<std::int64_t>(1, shape.num_heads * shape.head_width);
  const RowChunks chunks(shape.num_rows, width, num_threads, 1 << 16);
  chunks.run([&](std::int64_t first, std::int64_t last, std::int64_t) {
    for (std::int64_t i = first; i < last; ++i)
      for (std::int64_t head = 0; head < shape.num_heads; ++head)
        body(i, head, i * shape.num_heads + head);
  });
}

/// Sum of term(0) ... term(count - 1), in several independent sums.
template <class T, class Term>
T sum_of(std::int64_t count, const Term& term) {
  constexpr std::int64_t kSums = 16;
  T sums[kSums] = {};
  std::int64_t c = 0;
  for (; c + kSums <= count; c += kSums)
    for (std::int64_t k = 0; k < kSums; ++k) sums[k] += term(c + k);
  for (std::int64_t k = 0; c < count; ++c, ++k) sums[k] += term(c);
  T sum = 0;
  for (const T each : sums) sum += each;
  return sum;
}

/// Prefetch a row some iterations before its turn: pieces of wider rows are too far apart for the
/// hardware to do so. With `kWrite` it will be written.
template <bool kWrite, class T>
void foresee(const T* row, std::int64_t pitch, std::int64_t width, std::int64_t rows_left) {
  constexpr std::int64_t kAhead = 4, kLine = 64 / sizeof(T);
  if (rows_left <= kAhead) return;
  for (std::int64_t c = 0; c < width; c += kLine)
    __builtin_prefetch(row + kAhead * pitch + c, kWrite ? 1 : 0);
}

}  // namespace

template <class T>
void merge_states(const AttentionState& state, const AttentionState& other,
                  const std::int32_t* rows, const StateShape& shape, int num_threads) {
  const std::int64_t width = shape.head_width;
  for_heads(shape, num_threads, [&](std::int64_t i, std::int64_t head, std::int64_t from) {
    const T other_top = static_cast<const T*>(other.top)[from];
    if (other_top == kNone<T>) return;
    const std::int64_t to = (rows ? rows[i] : i) * shape.num_heads + head;
    T &top = static_cast<T*>(state.top)[to], &total = static_cast<T*>(state.total)[to];
    const T* const source = static_cast<const T*>(other.out) + from * width;
    T* const out = static_cast<T*>(state.out) + to * width;
    // Nothing has been written to `out` yet, and 0 times its content may be NaN.
    if (top == kNone<T>) {
      top = other_top;
      total = static_cast<const T*>(other.total)[from];
      std::copy_n(source, width, out);
      return;
    }
    const T new_top = std::max(top, other_top);
    const T mine = std::exp(top - new_top), theirs = std::exp(other_top - new_top);
    top = new_top;
    total = mine * total + theirs * static_cast<const T*>(other.total)[from];
    for (std::int64_t c = 0; c < width; ++c) out[c] = mine * out[c] + theirs * source[c];
  });
}

template <class T>
void finish_states(const AttentionState& state, const StateShape& shape, Rows<T> into,
                   const T* bias, int num_threads) {
  const std::int64_t width = shape.head_width;
  const std::vector<T> zeros(
      static_cast<std::size_t>(bias == nullptr ? shape.num_heads * width : 0));
  const T* const shifts = bias == nullptr ? zeros.data() : bias;
  for_heads(shape, num_threads, [&](std::int64_t i, std::int64_t head, std::int64_t at) {
    T& top = static_cast<T*>(state.top)[at];
    const T total = static_cast<const T*>(state.total)[at];
    const T* const out = static_cast<const T*>(state.out) + at * width;
    const T* const shift = shifts + head * width;
    T* const result = into.data + i * into.pitch + head * width;
    foresee<true>(result, into.pitch, width, shape.num_rows - i);
    // Nothing has been written to `out` yet, and 0 times its content may be NaN.
    if (top == kNone<T>) {
      std::copy_n(shift, width, result);
      return;
    }
    const T scale = 1 / total;
    for (std::int64_t c = 0; c < width; ++c) result[c] = out[c] * scale + shift[c];
    top += std::log(total);
  });
}

template <class T>
void inner_products_of_heads(Rows<const T> grad, Rows<const T> out, const T* bias,
                             const StateShape& shape, T* delta, T* copy, int num_threads) {
  const std::int64_t width = shape.head_width;
  for_heads(shape, num_threads, [&](std::int64_t i, std::int64_t head, std::int64_t at) {
    const T* const a = grad.data + i * grad.pitch + head * width;
    const T* const b = out.data + i * out.pitch + head * width;
    foresee<false>(a, grad.pitch, width, shape.num_rows - i);
    foresee<false>(b, out.pitch, width, shape.num_rows - i);
    const T* const shift = bias == nullptr ? nullptr : bias + head * width;
    delta[at] = bias == nullptr
                    ? sum_of<T>(width, [&](std::int64_t c) { return a[c] * b[c]; })
                    : sum_of<T>(width, [&](std::int64_t c) { return a[c] * (b[c] - shift[c]); });
    if (copy != nullptr) std::copy_n(a, width, copy + at * width);
  });
}

template <class T, class X>
void scores_of_heads(const X* z, const T* weights, const StateShape& shape, T* source,
                     int num_threads) {
  const std::int64_t width = shape.head_width;
  for_heads(shape, num_threads, [&](std::int64_t, std::int64_t head, std::int64_t at) {
    const X* const a = z + at * width;
    const T* const b = weights + head * width;
    source[at] = sum_of<T>(width, [&](std::int64_t c) { return half::widen<T>(a[c]) * b[c]; });
  });
}

template void merge_states<float>(const AttentionState&, const AttentionState&, const std::int32_t*,
                                  const StateShape&, int);
template void merge_states<double>(const AttentionState&, const AttentionState&,
                                   const std::int32_t*, const StateShape&, int);
template void finish_states<float>(const AttentionState&, const StateShape&, Rows<float>,
                                   const float*, int);
template void finish_states<double>(const AttentionState&, const StateShape&, Rows<double>,
                                    const double*, int);
template void inner_products_of_heads(Rows<const float>, Rows<const float>, const float*,
                                      const StateShape&, float*, float*, int);
template void inner_products_of_heads(Rows<const double>, Rows<const double>, const double*,
                                      const StateShape&, double*, double*, int);
template void scores_of_heads(const float*, const float*, const StateShape&, float*, int);
template void scores_of_heads(const double*, const double*, const StateShape&, double*, int);
template void scores_of_heads(const BFloat16*, const float*, const StateShape&, float*, int);
template void scores_of_heads(const Float16*, const float*, const StateShape&, float*, int);

}  // namespace hpcgnn::kernels
