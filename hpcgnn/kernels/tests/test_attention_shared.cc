// Heads that share the rows of x against heads that each have a copy of them, at every instruction
// set and 1, 3 and 4 threads.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/shared.h"
#include "testing.h"

namespace hpcgnn::kernels::testing {
namespace {

constexpr std::int64_t kSlices = 3;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

template <class T>
AttentionBlock block_of(const Csr& a, std::int64_t heads, std::int64_t width, const T* z,
                        const T* source, const T* target, int threads, Isa isa) {
  return {.indptr = a.indptr.data(),
          .indices = a.indices.data(),
          .rows = nullptr,
          .row_ids = nullptr,
          .column_ids = nullptr,
          .values = z,
          .source = source,
          .target = target,
          .edges = nullptr,
          .keyed = false,
          .whole_lines = false,
          .num_rows = a.num_rows(),
          .num_columns = a.num_columns,
          .num_nonzeros = a.num_nonzeros(),
          .num_targets = a.num_rows(),
          .num_heads = heads,
          .head_width = width,
          .weight_dropout = {0, 0},
          .edge_dropout = {0, 0},
          .slope = 0.25,
          .storage = kStorage<T>,
          .num_threads = threads,
          .isa = isa};
}

template <class T>
void check_alike(const std::vector<T>& found, const std::vector<T>& expected, const char* what) {
  double scale = 1;
  for (const T value : expected)
    if (std::isfinite(value)) scale = std::max(scale, static_cast<double>(std::abs(value)));
  for (std::size_t i = 0; i < found.size(); ++i)
    check(found[i] == expected[i] ||
              static_cast<double>(std::abs(found[i] - expected[i])) <= kTolerance<T> * scale,
          what);
}

template <class T>
struct Shared {
  std::vector<T> mean, lse, dx, dsource, dtarget;
};

template <class T>
Shared<T> compute(const AttentionBlock& block, const std::vector<T>& grad) {
  const std::int64_t by_head = block.num_rows * block.num_heads;
  Shared<T> r;
  r.mean.assign(grad.size(), std::numeric_limits<T>::quiet_NaN());
  r.lse.resize(size(by_head));
  r.dx.resize(size(block.num_columns * block.head_width));
  r.dsource.resize(size(kSlices * block.num_columns * block.num_heads));
  r.dtarget.resize(size(by_head));
  const SharedMeans means{r.mean.data(), r.lse.data(), block.head_width};
  shared_forward(block, means, 1);
  shared_backward(
      block, {means, grad.data(), r.dx.data(), r.dsource.data(), r.dtarget.data(), kSlices}, 1);
  return r;
}

template <class T>
void test_shared_layer(const Csr& a, std::int64_t heads, std::int64_t width, Isa isa) {
  const std::int64_t rows = a.num_rows(), columns = a.num_columns;
  const auto x = random_dense<T>(columns * width, 31),
             source = random_dense<T>(columns * heads, 37),
             target = random_dense<T>(rows * heads, 41),
             grad = random_dense<T>(rows * heads * width, 43);
  std::vector<T> z;
  for (std::int64_t j = 0; j < columns; ++j)
    for (std::int64_t h = 0; h < heads; ++h)
      z.insert(z.end(), x.begin() + j * width, x.begin() + (j + 1) * width);
  std::vector<T> top(target.size(), -std::numeric_limits<T>::infinity()), total(target.size()),
      out(grad.size());
  const AttentionState state{top.data(), total.data(), out.data()};
  additive_forward(block_of(a, heads, width, z.data(), source.data(), target.data(), 1, isa),
                   state);
  finish_states<T>(state, {rows, heads, width}, {out.data(), heads * width}, nullptr, 1);
  const auto block = [&](int threads) {
    return block_of(a, heads, width, x.data(), source.data(), target.data(), threads, isa);
  };
  const Shared<T> first = compute(block(1), grad);
  check_alike(first.lse, top, "log of the sum of exponentials");
  check_alike(first.mean, out, "means");
  for (const int threads : {3, 4}) {
    const Shared<T> r = compute(block(threads), grad);
    check(r.mean == first.mean && r.lse == first.lse && r.dx == first.dx &&
              r.dsource == first.dsource && r.dtarget == first.dtarget,
          "equal bits at any number of threads");
  }
  // Softmax weights add up to one, so the gradients of x add up to those of the means.
  std::vector<T> gradients(size(width)), wanted(size(width));
  for (std::size_t i = 0; i < first.dx.size(); ++i) gradients[i % size(width)] += first.dx[i];
  for (std::int64_t i = 0; i < rows * heads; ++i) {
    if (!std::isfinite(top[size(i)])) continue;
    for (std::int64_t c = 0; c < width; ++c) wanted[size(c)] += grad[size(i * width + c)];
  }
  check_alike(gradients, wanted, "gradient of x");
}

}  // namespace
}  // namespace hpcgnn::kernels::testing

int test_attention_shared(int, char*[]) {
  using namespace hpcgnn::kernels::testing;
  for (const Csr& a : ugly_matrices())
    for (const hpcgnn::kernels::Isa isa : isas()) {
      if (!has_hubs(a)) {
        test_shared_layer<float>(a, 1, 1, isa);
        test_shared_layer<float>(a, 9, 7, isa);
      }
      test_shared_layer<float>(a, 3, 37, isa);
      test_shared_layer<double>(a, 2, 19, isa);
    }
  return 0;
}
