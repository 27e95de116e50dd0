// The practical limit of a product: reads the rows of x that the product reads, in its order, and
// adds them into registers. No values, no row ends, no result. Built for this machine by
// gather_limit.py.
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

typedef float Reg __attribute__((vector_size(64)));
constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kAheadLines = 96;

template <int kRegs>
float read_block(const std::int32_t* indices, std::int64_t first, std::int64_t last,
                 std::int64_t count, const float* x, std::int64_t width) {
  constexpr std::int64_t kAhead = (kAheadLines + kRegs - 1) / kRegs;
  Reg sum[kRegs] = {};
  for (std::int64_t e = first; e < last; ++e) {
    const float* const next = x + indices[std::min(e + kAhead, count - 1)] * width;
    for (int r = 0; r < kRegs; ++r) __builtin_prefetch(next + r * kLanes);
    const float* const row = x + indices[e] * width;
    for (int r = 0; r < kRegs; ++r) {
      Reg value;
      std::memcpy(&value, row + r * kLanes, sizeof value);
      sum[r] += value;
    }
  }
  Reg total = {};
  for (const Reg& reg : sum) total += reg;
  return total[0];
}

float read_columns(const std::int32_t* indices, std::int64_t first, std::int64_t last,
                   std::int64_t count, const float* x, std::int64_t width, int regs) {
  switch (regs) {
    case 1:
      return read_block<1>(indices, first, last, count, x, width);
    case 2:
      return read_block<2>(indices, first, last, count, x, width);
    case 4:
      return read_block<4>(indices, first, last, count, x, width);
    case 8:
      return read_block<8>(indices, first, last, count, x, width);
    default:
      return read_block<16>(indices, first, last, count, x, width);
  }
}

}  // namespace

/// Read all rows on `threads` threads, `regs` (1, 2, 4, 8 or 16) times 16 columns in each pass.
/// @pre width is a multiple of 16 regs.
extern "C" float gather_limit(const std::int32_t* indices, std::int64_t count, const float* x,
                              std::int64_t width, int regs, int threads) {
  float total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
  {
    const std::int64_t share = omp_get_thread_num(), shares = omp_get_num_threads();
    for (std::int64_t column = 0; column < width; column += regs * kLanes)
      total += read_columns(indices, count * share / shares, count * (share + 1) / shares, count,
                            x + column, width, regs);
  }
  return total;
}
