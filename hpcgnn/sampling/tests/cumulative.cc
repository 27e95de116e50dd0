/// The sampler by sums as a shared library, for the benchmark and the Python tests.
#include "cumulative.h"

/// @param visits room for num_walkers + num_pops nodes.
/// @return the number of nodes written.
extern "C" std::int64_t sample_frontier_by_sums(const std::int64_t* indptr,
                                                const std::int32_t* indices, std::int64_t num_nodes,
                                                std::int64_t num_walkers, std::int64_t num_pops,
                                                std::uint64_t seed, std::int64_t number,
                                                std::int32_t* visits) {
  std::vector<std::int32_t> found;
  found.reserve(static_cast<std::size_t>(num_walkers + num_pops));
  hpcgnn::sampling::testing::sample_frontier_by_sums({indptr, indices, num_nodes, num_nodes},
                                                     num_walkers, num_pops, {seed, number}, found);
  std::copy(found.begin(), found.end(), visits);
  return static_cast<std::int64_t>(found.size());
}
