#include <algorithm>

#include "parallel.h"
#include "random_bits.h"
#include "rows/rows.h"

namespace hpcgnn::kernels {
namespace {

constexpr std::int64_t kSerialElements = 1 << 15;
constexpr std::int64_t kChunkElements = 1 << 16;

template <class T>
void dropout_row(const T* x, std::uint64_t stream, std::int64_t width, std::uint64_t threshold,
                 T scale, T* out) {
  const auto keep = [&](T value, std::uint64_t bits) {
    return (bits & 0xffffffffu) >= threshold ? value * scale : T(0);
  };
  const std::int64_t pairs = width / 2;
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const std::uint64_t bits = mix_bits(stream + static_cast<std::uint64_t>(pair) * kGolden);
    out[2 * pair] = keep(x[2 * pair], bits);
    out[2 * pair + 1] = keep(x[2 * pair + 1], bits >> 32);
  }
  if (width % 2 != 0)
    out[width - 1] =
        keep(x[width - 1], mix_bits(stream + static_cast<std::uint64_t>(pairs) * kGolden));
}

}  // namespace

template <class T>
void dropout_rows(const T* x, const std::int64_t* row_ids, std::int64_t num_rows,
                  std::int64_t width, std::uint64_t key, double p, T* out, int num_threads) {
  const std::uint64_t threshold = drop_threshold(p);
  const T scale = p < 1.0 ? static_cast<T>(1.0 / (1.0 - p)) : T(0);
  const int threads = num_rows * width < kSerialElements ? 1 : resolve_threads(num_threads);
  const std::int64_t chunk =
      std::max<std::int64_t>(1, kChunkElements / std::max<std::int64_t>(1, width));
  parallel_tasks(threads, (num_rows + chunk - 1) / chunk, [&](std::int64_t task) {
    const std::int64_t last = std::min(num_rows, (task + 1) * chunk);
    for (std::int64_t i = task * chunk; i < last; ++i) {
      const std::uint64_t stream = mix_bits(row_stream(key, row_ids[i]));
      dropout_row(x + i * width, stream, width, threshold, scale, out + i * width);
    }
  });
}

template void dropout_rows(const float*, const std::int64_t*, std::int64_t, std::int64_t,
                           std::uint64_t, double, float*, int);
template void dropout_rows(const double*, const std::int64_t*, std::int64_t, std::int64_t,
                           std::uint64_t, double, double*, int);

}  // namespace hpcgnn::kernels
