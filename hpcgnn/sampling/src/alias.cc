#include "alias.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace hpcgnn::sampling {
namespace {

constexpr std::uint32_t kAlways = std::numeric_limits<std::uint32_t>::max();

double checked_sum(const double* weights, std::int64_t size) {
  double sum = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    if (!(weights[i] >= 0)) throw std::invalid_argument("weights must not be negative");
    sum += weights[i];
  }
  if (!(sum > 0) || !std::isfinite(sum))
    throw std::invalid_argument("weights must be finite, and one of them positive");
  return sum;
}

}  // namespace

void build_alias(const double* weights, std::int64_t size, std::uint32_t* thresholds,
                 std::int64_t* aliases) {
  const double scale = static_cast<double>(size) / checked_sum(weights, size);
  std::vector<double> shares(static_cast<std::size_t>(size));
  std::vector<std::int64_t> small, large;
  for (std::int64_t i = 0; i < size; ++i) {
    shares[static_cast<std::size_t>(i)] = weights[i] * scale;
    (weights[i] * scale < 1 ? small : large).push_back(i);
    thresholds[i] = kAlways;
    aliases[i] = i;
  }
  const auto share = [&](std::int64_t i) -> double& { return shares[static_cast<std::size_t>(i)]; };
  while (!small.empty() && !large.empty()) {
    const std::int64_t low = small.back(), high = large.back();
    small.pop_back();
    thresholds[low] =
        static_cast<std::uint32_t>(std::min(std::ldexp(share(low), 32), 0xffffffffp0));
    aliases[low] = high;
    share(high) -= 1 - share(low);
    if (share(high) >= 1) continue;
    large.pop_back();
    small.push_back(high);
  }
  // Rounding leaves columns that should be full; they must not keep an item without weight.
  const auto heaviest = std::max_element(weights, weights + size) - weights;
  for (const std::int64_t left : small)
    if (weights[left] == 0) {
      thresholds[left] = 0;
      aliases[left] = heaviest;
    }
}

void sample_nodes(const AliasTable& table, std::int64_t count, Draws draws,
                  std::vector<std::int32_t>& visits) {
  for (std::int64_t i = 0; i < count; ++i)
    visits.push_back(static_cast<std::int32_t>(table.draw(draws)));
}

void sample_edges(const Graph& graph, const AliasTable& table, std::int64_t count, Draws draws,
                  std::vector<std::int32_t>& visits) {
  const std::int64_t* const end = graph.indptr + graph.num_nodes + 1;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t entry = table.draw(draws);
    // The last row that begins at or before the entry, as empty rows come before it.
    const auto row = std::upper_bound(graph.indptr, end, entry) - graph.indptr - 1;
    visits.push_back(static_cast<std::int32_t>(row));
    visits.push_back(graph.indices[entry]);
  }
}

}  // namespace hpcgnn::sampling
