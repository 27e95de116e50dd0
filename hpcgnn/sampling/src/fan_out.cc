#include "fan_out.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "nodes.h"

namespace hpcgnn::sampling {
namespace {

/// Append `fan_out` different entries of [begin, end) to `chosen`, ascending (Floyd's algorithm).
void choose_entries(std::int64_t begin, std::int64_t end, std::int64_t fan_out, Draws draws,
                    std::vector<std::int64_t>& chosen) {
  const auto first = static_cast<std::ptrdiff_t>(chosen.size());
  if (end - begin <= fan_out) {
    chosen.resize(chosen.size() + static_cast<std::size_t>(end - begin));
    std::iota(chosen.begin() + first, chosen.end(), begin);
    return;
  }
  for (std::int64_t top = end - fan_out; top < end; ++top) {
    const std::int64_t drawn = begin + draws.below(top - begin + 1);
    const bool taken = std::find(chosen.begin() + first, chosen.end(), drawn) != chosen.end();
    chosen.push_back(taken ? top : drawn);
  }
  std::sort(chosen.begin() + first, chosen.end());
}

}  // namespace

FanOut sample_fan_out(const Graph& graph, const std::int32_t* targets, std::int64_t count,
                      std::int64_t fan_out, Draws draws) {
  FanOut out;
  auto& [indptr, indices, entries] = out.pattern;
  indptr.push_back(0);
  for (std::int64_t i = 0; i < count; ++i) {
    choose_entries(graph.indptr[targets[i]], graph.indptr[targets[i] + 1], fan_out,
                   draws.of(targets[i]), entries);
    indptr.push_back(static_cast<std::int64_t>(entries.size()));
  }
  std::vector<std::int32_t> visits(targets, targets + count);
  for (const std::int64_t entry : entries) visits.push_back(graph.indices[entry]);
  out.inputs = distinct_nodes(std::move(visits));
  const NodeIndex index(out.inputs.data(), static_cast<std::int64_t>(out.inputs.size()));
  for (const std::int64_t entry : entries) indices.push_back(index.find(graph.indices[entry]));
  return out;
}

}  // namespace hpcgnn::sampling
