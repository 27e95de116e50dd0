#include "volpart/clusters.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>

#include "checks.h"
#include "random.h"

namespace hpcgnn::volpart {
namespace {

/// Sums by cluster, for one vertex after the other.
class Sums {
 public:
  void start(std::size_t most) {
    const std::size_t size = std::bit_ceil(2 * most + 1);
    if (_slots.size() < size) _slots.assign(size, {});
    for (const std::size_t slot : _used) _slots[slot] = {};
    _used.clear();
    _mask = _slots.size() - 1;
  }
  void add(std::int64_t cluster, double value) {
    std::size_t slot = Random(static_cast<std::uint64_t>(cluster)).bits() & _mask;
    while (_slots[slot].cluster >= 0 && _slots[slot].cluster != cluster) slot = (slot + 1) & _mask;
    if (_slots[slot].cluster < 0) {
      _slots[slot].cluster = cluster;
      _used.push_back(slot);
    }
    _slots[slot].value += value;
  }
  std::int64_t best(std::uint64_t seed) const {
    Slot found;
    std::uint64_t rank = 0;
    for (const std::size_t place : _used) {
      const Slot& slot = _slots[place];
      const std::uint64_t mine = Random(seed ^ static_cast<std::uint64_t>(slot.cluster)).bits();
      if (slot.value < found.value || (slot.value == found.value && mine <= rank)) continue;
      found = slot;
      rank = mine;
    }
    return found.cluster;
  }

 private:
  struct Slot {
    std::int64_t cluster = -1;
    double value = 0;
  };
  std::vector<Slot> _slots;
  std::vector<std::size_t> _used;
  std::size_t _mask = 0;
};

}  // namespace

std::vector<std::int64_t> best_cluster(const GraphRows& graph,
                                       std::span<const std::int64_t> cluster,
                                       std::span<const std::uint8_t> open,
                                       std::span<const std::uint8_t> asks, std::uint64_t seed) {
  const std::size_t num_rows = asks.size(), num_columns = cluster.size();
  if (graph.indptr.size() != num_rows + 1 || at(graph.indptr.back()) != graph.columns.size() ||
      graph.edges.size() != graph.columns.size() || graph.share.size() != num_columns ||
      open.size() != num_columns || num_columns < num_rows)
    throw std::invalid_argument("the arrays of the graph do not fit each other");
  for (const std::int32_t column : graph.columns)
    if (column < 0 || at(column) >= num_columns)
      throw std::invalid_argument("a column is out of range");
  std::vector<std::int64_t> found(num_rows, -1);
  Sums sums;
  for (std::size_t row = 0; row < num_rows; ++row) {
    if (asks[row] == 0) continue;
    const std::size_t begin = at(graph.indptr[row]), end = at(graph.indptr[row + 1]);
    sums.start(end - begin);
    for (std::size_t k = begin; k < end; ++k) {
      const std::size_t column = at(graph.columns[k]);
      if (open[column] == 0 || graph.edges[k] == 0 || cluster[column] == cluster[row]) continue;
      sums.add(cluster[column], graph.edges[k] * (graph.share[column] + graph.share[row]));
    }
    found[row] = sums.best(seed);
  }
  return found;
}

template <class Index>
EdgeSample<Index> sample_edges(const SampledRows<Index>& rows, double density,
                               std::int32_t heaviest, std::uint64_t seed) {
  const std::size_t num_rows = rows.row_share.size(), num_columns = rows.share.size();
  if (rows.indptr.size() != num_rows + 1 || at(rows.indptr.back()) != rows.columns.size() ||
      (!rows.edges.empty() && rows.edges.size() != rows.columns.size()) ||
      (!rows.names.empty() && rows.names.size() != num_columns))
    throw std::invalid_argument("the arrays of the rows do not fit each other");
  EdgeSample<Index> found;
  for (std::size_t row = 0; row < num_rows; ++row) {
    const std::int64_t source = rows.first + static_cast<std::int64_t>(row);
    for (std::size_t k = at(rows.indptr[row]); k < at(rows.indptr[row + 1]); ++k) {
      const std::size_t column = at(rows.columns[k]);
      if (column >= num_columns) throw std::invalid_argument("a column is out of range");
      const std::int64_t target =
          rows.names.empty() ? static_cast<std::int64_t>(column) : rows.names[column];
      const double weight = rows.edges.empty() ? 1 : rows.edges[k];
      if (weight == 0 || source == target) continue;
      const double chance =
          std::min(1.0, density * weight * (rows.row_share[row] + rows.share[column]));
      const auto [low, high] = std::minmax(source, target);
      const std::uint64_t mixed = Random(seed ^ static_cast<std::uint64_t>(low)).bits();
      if (Random(mixed ^ static_cast<std::uint64_t>(high)).unit() >= chance) continue;
      found.row.push_back(static_cast<std::int32_t>(row));
      found.column.push_back(rows.columns[k]);
      const double scaled = std::min(std::round(weight / chance), static_cast<double>(heaviest));
      found.edges.push_back(static_cast<std::int32_t>(scaled));
    }
  }
  return found;
}

template EdgeSample<std::int32_t> sample_edges(const SampledRows<std::int32_t>&, double,
                                               std::int32_t, std::uint64_t);
template EdgeSample<std::int64_t> sample_edges(const SampledRows<std::int64_t>&, double,
                                               std::int32_t, std::uint64_t);

}  // namespace hpcgnn::volpart
