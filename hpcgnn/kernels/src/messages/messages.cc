#include "messages/messages.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "parallel.h"
#include "rows/rows.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

/// Sums of columns: a row of zeros for each chunk to add to; these rows are added to the results.
class Sums {
 public:
  Sums(std::int64_t num_chunks, std::int64_t width, Storage storage, std::vector<void*> results)
      : width_(width),
        wide_(storage == Storage::kFloat64),
        results_(std::move(results)),
        bytes_(width * static_cast<std::int64_t>(results_.size()) * (wide_ ? 8 : 4)) {
    if (wanted()) parts_.resize(static_cast<std::size_t>(num_chunks * bytes_));
  }

  void* of(std::int64_t chunk) { return wanted() ? parts_.data() + chunk * bytes_ : nullptr; }

  void add_up() const {
    if (wanted()) wide_ ? add_up_as<double>() : add_up_as<float>();
  }

 private:
  bool wanted() const {
    return std::any_of(results_.begin(), results_.end(),
                       [](const void* p) { return p != nullptr; });
  }

  template <class T>
  void add_up_as() const {
    const std::size_t row = results_.size() * static_cast<std::size_t>(width_);
    const T* const parts = reinterpret_cast<const T*>(parts_.data());
    const std::size_t count = parts_.size() / sizeof(T);
    for (std::size_t place = 0; place < results_.size(); ++place) {
      T* const result = static_cast<T*>(results_[place]);
      if (result == nullptr) continue;
      for (std::size_t start = place * static_cast<std::size_t>(width_); start < count;
           start += row)
        for (std::size_t c = 0; c < static_cast<std::size_t>(width_); ++c)
          result[c] += parts[start + c];
    }
  }

  std::int64_t width_;
  bool wide_;
  std::vector<void*> results_;
  std::int64_t bytes_;
  std::vector<std::byte> parts_;
};

void scatter(const CombineGradient& a, const std::int32_t* ids, void* out, std::int64_t num_out) {
  if (out == nullptr) return;
  scatter_add_rows({.source = a.out,
                    .rows = ids,
                    .out = out,
                    .num_rows = a.num_rows,
                    .num_out_rows = num_out,
                    .width = a.width,
                    .source_storage = a.storage,
                    .out_storage = accumulator_of(a.storage),
                    .num_threads = a.num_threads,
                    .isa = a.isa});
}

}  // namespace

void combine_rows(const CombineArguments& a) {
  const auto kernel = table_of<MessagesTable>(a.isa).combine[static_cast<int>(a.storage)];
  RowChunks(a.num_rows, a.width, a.num_threads).run(kernel, a);
}

void combine_rows_gradient(const CombineGradient& a) {
  const auto kernel = table_of<MessagesTable>(a.isa).combine_gradient[static_cast<int>(a.storage)];
  const RowChunks chunks(a.num_rows, a.width, a.num_threads);
  // Several threads would add to the same rows.
  const bool scatters = chunks.threads == 1;
  Sums sums(chunks.count, a.width, a.storage, {a.of_bias});
  chunks.run([&](std::int64_t first, std::int64_t last, std::int64_t index) {
    kernel(a, first, last, scatters, sums.of(index));
  });
  sums.add_up();
  if (scatters) return;
  scatter(a, a.target_ids, a.of_targets, a.num_targets);
  scatter(a, a.source_ids, a.of_sources, a.num_sources);
}

void norm_rows(const NormArguments& a) {
  const auto kernel = table_of<MessagesTable>(a.isa).norm[static_cast<int>(a.storage)];
  RowChunks(a.num_rows, a.width, a.num_threads).run(kernel, a);
}

void norm_rows_gradient(const NormGradient& a) {
  const NormArguments& norm = a.norm;
  const auto kernel =
      table_of<MessagesTable>(norm.isa).norm_gradient[static_cast<int>(norm.storage)];
  const RowChunks chunks(norm.num_rows, norm.width, norm.num_threads);
  Sums sums(chunks.count, norm.width, norm.storage, {a.of_bias, a.of_scale, a.of_shift});
  chunks.run([&](std::int64_t first, std::int64_t last, std::int64_t index) {
    kernel(a, first, last, sums.of(index));
  });
  sums.add_up();
}

}  // namespace hpcgnn::kernels
