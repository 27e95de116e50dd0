// Products with a chosen size of cache, for tile_misses.py to count their misses.
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include "simd/isa.h"
#include "spmm/cache.h"
#include "spmm/spmm.h"

namespace {
std::int64_t cache_bytes;
}

// The linker puts it in the place of hpcgnn::kernels::private_cache_bytes.
extern "C" std::int64_t __wrap__ZN6hpcgnn7kernels19private_cache_bytesEv() { return cache_bytes; }

int main(int count, char** words) {
  if (count != 6) return 1;
  const std::int64_t rows = std::atoll(words[1]), degree = std::atoll(words[2]),
                     width = std::atoll(words[3]), products = std::atoll(words[4]);
  cache_bytes = std::atoll(words[5]);
  std::mt19937_64 random(20261121);
  std::vector<std::int64_t> indptr{0};
  std::vector<std::int32_t> indices;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t k = 0; k < degree; ++k)
      indices.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(rows)));
    indptr.push_back(static_cast<std::int64_t>(indices.size()));
  }
  std::vector<float> x(static_cast<std::size_t>(rows * width), 1.0f), out(x.size());
  using namespace hpcgnn::kernels;
  for (std::int64_t i = 0; i < products; ++i)
    spmm({.indptr = indptr.data(),
          .indices = indices.data(),
          .values = nullptr,
          .x = x.data(),
          .out = out.data(),
          .rows = nullptr,
          .num_rows = rows,
          .num_nonzeros = static_cast<std::int64_t>(indices.size()),
          .num_x_rows = rows,
          .width = width,
          .x_storage = Storage::kFloat32,
          .out_storage = Storage::kFloat32,
          .accumulate = false,
          .mean = false,
          .num_threads = 1,
          .isa = best_isa()});
  return out[0] == static_cast<float>(degree) ? 0 : 2;
}
