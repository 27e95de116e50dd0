#include "rows/rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "balance.h"
#include "parallel.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

constexpr std::int64_t kSerialBytes = 1 << 18;
constexpr std::int64_t kChunkBytes = 1 << 18;
constexpr std::int64_t kPrefetchBytes = 4096;

void gather_chunk(const char* x, const std::int32_t* rows, std::int64_t first, std::int64_t last,
                  std::int64_t num_rows, std::int64_t row_bytes, char* out) {
  const std::int64_t distance = std::max<std::int64_t>(1, kPrefetchBytes / row_bytes);
  for (std::int64_t i = first; i < last; ++i) {
    if (i + distance < num_rows) {
      const char* const next = x + rows[i + distance] * row_bytes;
      for (std::int64_t byte = 0; byte < row_bytes; byte += 64) __builtin_prefetch(next + byte);
    }
    std::memcpy(out + i * row_bytes, x + rows[i] * row_bytes, static_cast<std::size_t>(row_bytes));
  }
}

/// Rows and columns of a tile: whole cache lines of four-byte elements in x and in out.
constexpr std::int64_t kTile = 16;

/// Interleave the lanes of the lower or upper halves of a and b.
template <int kFirst, class Reg, int... kLane>
Reg interleave(Reg a, Reg b, std::integer_sequence<int, kLane...>) {
  constexpr int kLanes = sizeof...(kLane);
  return __builtin_shufflevector(a, b, (kLane % 2 * kLanes + kFirst + kLane / 2)...);
}

/// Write the transpose of a square of 16 bytes a row.
template <class T>
void transpose_square(const T* x, std::int64_t width, T* out, std::int64_t num_rows) {
  typedef T Reg __attribute__((vector_size(16)));
  constexpr int kLanes = 16 / static_cast<int>(sizeof(T));
  constexpr std::make_integer_sequence<int, kLanes> kSequence;
  Reg rows[kLanes], next[kLanes];
  for (int i = 0; i < kLanes; ++i) std::memcpy(&rows[i], x + i * width, sizeof(Reg));
  for (int step = 1; step < kLanes; step *= 2) {
    for (int i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = interleave<0>(rows[i], rows[i + kLanes / 2], kSequence);
      next[2 * i + 1] = interleave<kLanes / 2>(rows[i], rows[i + kLanes / 2], kSequence);
    }
    std::copy(next, next + kLanes, rows);
  }
  for (int i = 0; i < kLanes; ++i) std::memcpy(out + i * num_rows, &rows[i], sizeof(Reg));
}

/// Write rows [first, last) of x as columns of out. The rows of out that a column of tiles writes
/// are few, so that the processor keeps their pages.
template <class T>
void transpose_chunk(const T* x, std::int64_t num_rows, std::int64_t width, std::int64_t first,
                     std::int64_t last, T* out) {
  constexpr std::int64_t kLanes = 16 / sizeof(T);
  for (std::int64_t column = 0; column < width; column += kTile)
    for (std::int64_t row = first; row < last; row += kTile) {
      const std::int64_t end = std::min(last, row + kTile), stop = std::min(width, column + kTile);
      if (end - row == kTile && stop - column == kTile) {
        for (std::int64_t c = column; c < stop; c += kLanes)
          for (std::int64_t i = row; i < end; i += kLanes)
            transpose_square(x + i * width + c, width, out + c * num_rows + i, num_rows);
      } else {
        for (std::int64_t c = column; c < stop; ++c)
          for (std::int64_t i = row; i < end; ++i) out[c * num_rows + i] = x[i * width + c];
      }
    }
}

RowsProblem problem_of(const RowsArguments& a) {
  return {a.source, a.rows, a.out, a.num_rows, a.width};
}

/// Call `work` with the `copied_bytes` of each row of x and with their destination.
template <class Work>
void for_columns(const void* x, std::int64_t num_rows, std::int64_t pitch_bytes,
                 std::int64_t copied_bytes, void* out, int num_threads, const Work& work) {
  const std::int64_t chunk = std::max<std::int64_t>(1, kChunkBytes / copied_bytes);
  parallel_tasks(num_threads, (num_rows + chunk - 1) / chunk, [&](std::int64_t task) {
    const std::int64_t last = std::min(num_rows, (task + 1) * chunk);
    for (std::int64_t i = task * chunk; i < last; ++i)
      work(i, static_cast<const char*>(x) + i * pitch_bytes,
           static_cast<char*>(out) + i * copied_bytes);
  });
}

}  // namespace

bool rows_supports(Storage source, Storage out) {
  return RowsTable::portable.convert[static_cast<int>(source)][static_cast<int>(out)] != nullptr;
}

void gather_rows(const void* x, const std::int32_t* rows, std::int64_t num_rows,
                 std::int64_t row_bytes, void* out, int num_threads) {
  if (row_bytes == 0) return;
  const RowChunks chunks(num_rows, row_bytes, num_threads, kChunkBytes, kSerialBytes);
  chunks.run([&](std::int64_t first, std::int64_t last, std::int64_t) {
    gather_chunk(static_cast<const char*>(x), rows, first, last, num_rows, row_bytes,
                 static_cast<char*>(out));
  });
}

void copy_columns(const void* x, std::int64_t num_rows, std::int64_t pitch_bytes,
                  std::int64_t copied_bytes, void* out, int num_threads) {
  for_columns(x, num_rows, pitch_bytes, copied_bytes, out, num_threads,
              [=](std::int64_t, const char* source, char* target) {
                std::memcpy(target, source, static_cast<std::size_t>(copied_bytes));
              });
}

void scale_columns(const void* x, const void* factors, Storage storage, std::int64_t num_rows,
                   std::int64_t pitch_bytes, std::int64_t copied_bytes, void* out,
                   int num_threads) {
  const auto scale = [&]<class T>(const T* factor) {
    const std::int64_t width = copied_bytes / static_cast<std::int64_t>(sizeof(T));
    for_columns(x, num_rows, pitch_bytes, copied_bytes, out, num_threads,
                [=](std::int64_t i, const char* source, char* target) {
                  const T* const from = reinterpret_cast<const T*>(source);
                  T* const to = reinterpret_cast<T*>(target);
                  for (std::int64_t c = 0; c < width; ++c) to[c] = from[c] * factor[i];
                });
  };
  if (storage == Storage::kFloat64)
    scale(static_cast<const double*>(factors));
  else
    scale(static_cast<const float*>(factors));
}

void transpose_rows(const void* x, std::int64_t num_rows, std::int64_t width,
                    std::int64_t element_bytes, void* out, int num_threads) {
  const std::int64_t total = num_rows * width * element_bytes;
  const int threads = total < kSerialBytes ? 1 : resolve_threads(num_threads);
  // Threads write different lines of a row of out.
  constexpr std::int64_t kTogether = 16 * kTile;
  const auto with = [&]<class T>(T) {
    parallel_tasks(threads, (num_rows + kTogether - 1) / kTogether, [&](std::int64_t task) {
      transpose_chunk(static_cast<const T*>(x), num_rows, width, task * kTogether,
                      std::min(num_rows, (task + 1) * kTogether), static_cast<T*>(out));
    });
  };
  if (element_bytes == 2)
    with(std::uint16_t{});
  else if (element_bytes == 4)
    with(std::uint32_t{});
  else
    with(std::uint64_t{});
}

void convert_rows(const RowsArguments& a) {
  const RowsTable::Kernel kernel =
      table_of<RowsTable>(a.isa)
          .convert[static_cast<int>(a.source_storage)][static_cast<int>(a.out_storage)];
  const std::int64_t row_bytes =
      std::max<std::int64_t>(1, a.width * storage_bytes(a.source_storage));
  RowChunks(a.num_rows, row_bytes, a.num_threads, kChunkBytes, kSerialBytes)
      .run(kernel, problem_of(a));
}

void scatter_add_rows(const RowsArguments& a) {
  const RowsTable::Kernel kernel =
      table_of<RowsTable>(a.isa)
          .scatter_add[static_cast<int>(a.source_storage)][static_cast<int>(a.out_storage)];
  const std::int64_t total = a.num_rows * a.width * storage_bytes(a.source_storage);
  const int threads = total < kSerialBytes ? 1 : resolve_threads(a.num_threads);
  const auto bounds = balanced_targets(a.rows, a.num_rows, a.num_out_rows, threads);
  const RowsProblem problem = problem_of(a);
  parallel_tasks(threads, threads, [&](std::int64_t task) {
    const std::size_t share = static_cast<std::size_t>(task);
    kernel(problem, bounds[share], bounds[share + 1]);
  });
}

}  // namespace hpcgnn::kernels
