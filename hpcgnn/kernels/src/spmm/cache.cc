#include "spmm/cache.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace hpcgnn::kernels {
namespace {

constexpr std::int64_t kLine = 64;
constexpr std::int64_t kDefaultBytes = 1 << 20;
// Measured: with fewer reads of each row of x, further passes over the pattern and the partly
// written rows of the result cost more than the cache saves.
constexpr std::int64_t kReadsToRepay = 14;
constexpr std::int64_t kFewestLines = 2;
// Measured: such rows take up to a third less time whole, from a shared cache that holds x.
constexpr std::int64_t kWholeLines = 4;

/// Bytes of a level of the first core's caches; 0 if unknown.
std::int64_t from_sysfs(int wanted) {
  for (int index = 0; index < 8; ++index) {
    const std::string folder =
        "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    std::ifstream level_file(folder + "level"), type_file(folder + "type"),
        size_file(folder + "size");
    int level = 0;
    std::string type;
    std::int64_t size = 0;
    char unit = 'K';
    if (!(level_file >> level) || !(type_file >> type) || !(size_file >> size)) continue;
    size_file >> unit;
    if (level == wanted && type != "Instruction") return size << (unit == 'M' ? 20 : 10);
  }
  return 0;
}

std::int64_t measure() {
  std::int64_t bytes = from_sysfs(2);
#ifdef _SC_LEVEL2_CACHE_SIZE
  if (bytes <= 0) bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
  return bytes > 0 ? bytes : kDefaultBytes;
}

}  // namespace

std::int64_t private_cache_bytes() {
  static const std::int64_t bytes = measure();
  return bytes;
}

std::int64_t shared_cache_bytes() {
  static const std::int64_t bytes = from_sysfs(3);
  return bytes;
}

Tiling choose_tiling(std::int64_t num_x_rows, std::int64_t row_bytes, std::int64_t num_nonzeros,
                     std::int64_t private_bytes, std::int64_t shared_bytes) {
  const std::int64_t x_bytes = num_x_rows * row_bytes;
  if (x_bytes <= private_bytes || num_nonzeros < kReadsToRepay * num_x_rows)
    return {row_bytes, false};
  const std::int64_t fitting = private_bytes / num_x_rows / kLine;
  const std::int64_t row_lines = (row_bytes + kLine - 1) / kLine;
  if (fitting < kFewestLines && row_lines <= kWholeLines && x_bytes <= shared_bytes)
    return {row_bytes, false};
  const std::int64_t lines = std::max(kFewestLines, fitting);
  const std::int64_t tiles = (row_lines + lines - 1) / lines;
  const std::int64_t bytes = (row_lines + tiles - 1) / tiles * kLine;
  return {std::min(row_bytes, bytes), bytes < row_bytes};
}

}  // namespace hpcgnn::kernels
