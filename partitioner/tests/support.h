/// Checks and small graphs for the tests.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "random.h"
#include "state/hypergraph.h"
#include "volpart/csr.h"

/// End the test with the place and text of a condition that does not hold.
#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                        \
    }                                                                      \
  } while (false)

namespace hpcgnn::volpart::testing {

/// A CSR pattern that owns its arrays.
struct Graph {
  std::vector<std::int64_t> indptr{0};
  std::vector<std::int32_t> indices;

  CsrView view() const {
    return {std::span<const std::int64_t>(indptr), std::span<const std::int32_t>(indices)};
  }
  std::int64_t num_rows() const { return static_cast<std::int64_t>(indptr.size()) - 1; }
};

/// Rows with up to `most` random columns each, a few hubs, loops and repeats among them.
inline Graph random_graph(std::uint32_t num_rows, std::uint32_t most, std::uint64_t seed) {
  Graph graph;
  Random random(seed);
  for (std::uint32_t row = 0; row < num_rows; ++row) {
    const std::uint32_t degree = random.below(20) == 0 ? 4 * most : random.below(most + 1);
    for (std::uint32_t k = 0; k < degree; ++k) {
      const std::uint32_t low = random.below(num_rows) + 1;
      graph.indices.push_back(static_cast<std::int32_t>(random.below(low)));
    }
    graph.indptr.push_back(static_cast<std::int64_t>(graph.indices.size()));
  }
  return graph;
}

/// A ring with edges both ways.
inline Graph ring(std::int32_t num_rows) {
  Graph graph;
  for (std::int32_t row = 0; row < num_rows; ++row) {
    graph.indices.push_back((row + 1) % num_rows);
    graph.indices.push_back((row + num_rows - 1) % num_rows);
    graph.indptr.push_back(static_cast<std::int64_t>(graph.indices.size()));
  }
  return graph;
}

template <class Number>
std::vector<Number> random_parts(std::size_t size, int num_parts, std::uint64_t seed) {
  std::vector<Number> part(size);
  Random random(seed);
  for (Number& p : part)
    p = static_cast<Number>(random.below(static_cast<std::uint64_t>(num_parts)));
  return part;
}

}  // namespace hpcgnn::volpart::testing
