#include "induce.h"

#include "nodes.h"

namespace hpcgnn::sampling {
namespace {

/// Write the entries of a row that pass the filter to `kept`, without branches on data.
std::size_t filter_row(const Graph& graph, std::int64_t begin, std::int64_t end,
                       const NodeIndex& index, std::vector<std::int64_t>& kept) {
  if (kept.size() < static_cast<std::size_t>(end - begin))
    kept.resize(static_cast<std::size_t>(end - begin));
  std::size_t count = 0;
  for (std::int64_t entry = begin; entry < end; ++entry) {
    kept[count] = entry;
    count += index.maybe(graph.indices[entry]) ? 1 : 0;
  }
  return count;
}

}  // namespace

SampledPattern induce(const Graph& graph, const std::int32_t* nodes, std::int64_t count) {
  const NodeIndex index(nodes, count);
  SampledPattern out;
  out.indptr.reserve(static_cast<std::size_t>(count) + 1);
  out.indptr.push_back(0);
  std::vector<std::int64_t> kept;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = graph.indptr[nodes[i]], end = graph.indptr[nodes[i] + 1];
    const std::size_t num_kept = filter_row(graph, begin, end, index, kept);
    for (std::size_t k = 0; k < num_kept; ++k) {
      const std::int32_t place = index.find(graph.indices[kept[k]]);
      if (place < 0) continue;
      out.indices.push_back(place);
      out.entries.push_back(kept[k]);
    }
    out.indptr.push_back(static_cast<std::int64_t>(out.indices.size()));
  }
  return out;
}

}  // namespace hpcgnn::sampling
