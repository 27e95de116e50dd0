/// Fork-join loops over tasks.
#pragma once

#include <algorithm>
#include <cstdint>

#ifdef HPCGNN_STD_THREADS
#include <atomic>
#include <thread>
#include <vector>
#else
#include <omp.h>
#endif

namespace hpcgnn::kernels {

// With fewer multiply-adds, or elements, waking threads costs more than it saves.
inline constexpr std::int64_t kSerialWork = 1 << 16, kSerialElements = 1 << 15;

/// `requested`, or the OpenMP default (OMP_NUM_THREADS, affinity) when it is 0.
inline int resolve_threads(int requested) {
  if (requested > 0) return requested;
#ifdef HPCGNN_STD_THREADS
  return 2;
#else
  return omp_get_max_threads();
#endif
}

/// Run `body(task)` for every task in [0, num_tasks) on `num_threads` threads. Tasks are handed out
/// in order as threads become free, so results must not depend on which thread runs a task.
/// @pre `body` does not throw.
template <class Body>
void parallel_tasks(int num_threads, std::int64_t num_tasks, Body&& body) {
  if (num_threads <= 1 || num_tasks <= 1) {
    for (std::int64_t task = 0; task < num_tasks; ++task) body(task);
    return;
  }
#ifdef HPCGNN_STD_THREADS
  // libgomp is not instrumented for ThreadSanitizer: it would report every barrier as a race.
  std::atomic<std::int64_t> next{0};
  std::vector<std::thread> workers;
  for (int t = 0; t < num_threads; ++t)
    workers.emplace_back([&] {
      for (std::int64_t task = next++; task < num_tasks; task = next++) body(task);
    });
  for (std::thread& worker : workers) worker.join();
#else
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_threads)
  for (std::int64_t task = 0; task < num_tasks; ++task) body(task);
#endif
}

/// Rows of `width` elements in chunks of about `elements`, for any number of threads the same.
struct RowChunks {
  std::int64_t num_rows, chunk, count;
  int threads;

  RowChunks(std::int64_t rows, std::int64_t width, int num_threads, std::int64_t elements = 1 << 15,
            std::int64_t serial = kSerialElements)
      : num_rows(rows),
        chunk(std::max<std::int64_t>(1, elements / std::max<std::int64_t>(1, width))),
        count((rows + chunk - 1) / chunk),
        threads(rows * width < serial ? 1 : resolve_threads(num_threads)) {}

  /// Call `body(first, last, index)` for the rows of each chunk.
  template <class Body>
  void run(const Body& body) const {
    parallel_tasks(threads, count, [&](std::int64_t index) {
      body(index * chunk, std::min(num_rows, (index + 1) * chunk), index);
    });
  }

  /// Call `kernel(arguments, first, last)` for each chunk.
  template <class Kernel, class Arguments>
  void run(Kernel kernel, const Arguments& arguments) const {
    run([&](std::int64_t first, std::int64_t last, std::int64_t) {
      kernel(arguments, first, last);
    });
  }
};

}  // namespace hpcgnn::kernels
