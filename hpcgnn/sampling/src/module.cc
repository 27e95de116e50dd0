/// The Python bindings of the samplers; defaults and documentation are in the Python modules.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "alias.h"
#include "bindings.h"
#include "fan_out.h"
#include "frontier.h"
#include "induce.h"
#include "nodes.h"
#include "walks.h"

namespace hpcgnn::sampling {
namespace {

namespace nb = nanobind;
using namespace nb::literals;
using kernels::extent;
using kernels::Indices;
using kernels::Offsets;
using kernels::require;
using kernels::Vector;
using Nodes = Vector<std::int32_t>;
using PyPattern = std::tuple<Vector<std::int64_t>, Nodes, Vector<std::int64_t>>;

/// A pattern that is checked once and not copied.
class Topology {
 public:
  Topology(Offsets indptr, Indices indices, std::int64_t num_roots)
      : indptr_(std::move(indptr)), indices_(std::move(indices)) {
    const std::int64_t num_nodes = kernels::checked_rows(indptr_, indices_);
    nb::gil_scoped_release unlocked;
    kernels::check_indptr(indptr_.data(), num_nodes, extent(indices_, 0));
    kernels::check_range("indices", indices_.data(), extent(indices_, 0), num_nodes);
    kernels::check_sorted(indptr_.data(), indices_.data(), num_nodes);
    require(num_roots >= 0 && num_roots <= num_nodes, "the roots must be nodes");
    graph_ = {indptr_.data(), indices_.data(), num_nodes, num_roots};
  }

  const Graph& graph() const { return graph_; }

  const std::int32_t* checked(const Indices& nodes) const {
    kernels::check_range("nodes", nodes.data(), extent(nodes, 0), graph_.num_nodes);
    const std::int64_t whole[] = {0, extent(nodes, 0)};
    kernels::check_sorted(whole, nodes.data(), 1);
    return nodes.data();
  }

 private:
  Offsets indptr_;
  Indices indices_;
  Graph graph_{};
};

template <class T>
Vector<T> to_python(std::vector<T>&& values) {
  auto kept = std::make_unique<std::vector<T>>(std::move(values));
  T* const data = kept->data();
  const std::size_t size = kept->size();
  nb::capsule owner(kept.release(),
                    [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Vector<T>(data, {size}, owner);
}

PyPattern to_python(SampledPattern&& pattern) {
  return {to_python(std::move(pattern.indptr)), to_python(std::move(pattern.indices)),
          to_python(std::move(pattern.entries))};
}

/// Run a sampler without the GIL and return its visits to Python.
template <class Sample>
Nodes visits_of(Sample&& sample) {
  std::vector<std::int32_t> visits;
  {
    nb::gil_scoped_release unlocked;
    sample(visits);
  }
  return to_python(std::move(visits));
}

using Counts = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

std::tuple<std::vector<Nodes>, Counts> py_frontiers(const Topology& topology,
                                                    std::int64_t num_walkers, std::int64_t num_pops,
                                                    double enlargement, bool entered,
                                                    std::uint64_t seed,
                                                    const std::vector<std::int64_t>& numbers) {
  require(num_walkers >= 0 && num_pops >= 0, "walkers and pops must not be negative");
  require(enlargement > 1, "the enlargement must be above 1");
  const Frontier frontier{num_walkers, num_pops, enlargement, entered};
  FrontierCounts counts{};
  std::vector<std::vector<std::int32_t>> visits;
  {
    nb::gil_scoped_release unlocked;
    counts = sample_frontiers(topology.graph(), frontier, seed, numbers, visits);
  }
  std::vector<Nodes> arrays;
  for (auto& each : visits) arrays.push_back(to_python(std::move(each)));
  return {std::move(arrays), {counts.cleanups, counts.truncated, counts.probes}};
}

Nodes py_walks(const Topology& topology, std::int64_t num_roots, std::int64_t length,
               std::uint64_t seed, std::int64_t number) {
  require(num_roots >= 0 && length >= 0, "roots and length must not be negative");
  return visits_of(
      [&](auto& out) { sample_walks(topology.graph(), num_roots, length, {seed, number}, out); });
}

using Thresholds = Vector<const std::uint32_t>;
using Aliases = Vector<const std::int64_t>;

AliasTable checked_table(const Thresholds& thresholds, const Aliases& aliases, std::int64_t size) {
  require(extent(thresholds, 0) == size && extent(aliases, 0) == size,
          "the alias table is not one of this graph");
  return {thresholds.data(), aliases.data(), size};
}

Nodes py_nodes(const Topology& topology, const Thresholds& thresholds, const Aliases& aliases,
               std::int64_t count, std::uint64_t seed, std::int64_t number) {
  const AliasTable table = checked_table(thresholds, aliases, topology.graph().num_nodes);
  return visits_of([&](auto& out) { sample_nodes(table, count, {seed, number}, out); });
}

Nodes py_edges(const Topology& topology, const Thresholds& thresholds, const Aliases& aliases,
               std::int64_t count, std::uint64_t seed, std::int64_t number) {
  const AliasTable table = checked_table(thresholds, aliases, topology.graph().num_entries());
  return visits_of(
      [&](auto& out) { sample_edges(topology.graph(), table, count, {seed, number}, out); });
}

void py_build_alias(const Vector<const double>& weights, Vector<std::uint32_t>& thresholds,
                    Vector<std::int64_t>& aliases) {
  const std::int64_t size = extent(weights, 0);
  require(extent(thresholds, 0) == size && extent(aliases, 0) == size,
          "the table must have a place for each weight");
  nb::gil_scoped_release unlocked;
  build_alias(weights.data(), size, thresholds.data(), aliases.data());
}

Nodes py_distinct(const Indices& visits, std::int64_t multiple, std::uint64_t seed,
                  std::int64_t number) {
  return visits_of([&](auto& out) {
    out = distinct_nodes({visits.data(), visits.data() + extent(visits, 0)});
    clip_nodes(out, multiple, {seed, number});
  });
}

PyPattern py_induce(const Topology& topology, const Indices& nodes) {
  SampledPattern pattern;
  {
    nb::gil_scoped_release unlocked;
    pattern = induce(topology.graph(), topology.checked(nodes), extent(nodes, 0));
  }
  return to_python(std::move(pattern));
}

std::tuple<Nodes, PyPattern> py_fan_out(const Topology& topology, const Indices& targets,
                                        std::int64_t fan_out, std::uint64_t seed,
                                        std::int64_t number) {
  require(fan_out >= 0, "the fan-out must not be negative");
  FanOut layer;
  {
    nb::gil_scoped_release unlocked;
    layer = sample_fan_out(topology.graph(), topology.checked(targets), extent(targets, 0), fan_out,
                           {seed, number});
  }
  return {to_python(std::move(layer.inputs)), to_python(std::move(layer.pattern))};
}

}  // namespace
}  // namespace hpcgnn::sampling

NB_MODULE(_sampling, m) {
  using namespace hpcgnn::sampling;
  nb::class_<Topology>(m, "Topology")
      .def(nb::init<Offsets, Indices, std::int64_t>(), "indptr"_a.noconvert(),
           "indices"_a.noconvert(), "num_roots"_a);
  m.def("sample_frontiers", &py_frontiers, "topology"_a, "num_walkers"_a, "num_pops"_a,
        "enlargement"_a, "entered"_a, "seed"_a, "numbers"_a);
  m.def("sample_walks", &py_walks, "topology"_a, "num_roots"_a, "length"_a, "seed"_a, "number"_a);
  m.def("sample_nodes", &py_nodes, "topology"_a, "thresholds"_a.noconvert(),
        "aliases"_a.noconvert(), "count"_a, "seed"_a, "number"_a);
  m.def("sample_edges", &py_edges, "topology"_a, "thresholds"_a.noconvert(),
        "aliases"_a.noconvert(), "count"_a, "seed"_a, "number"_a);
  m.def("build_alias", &py_build_alias, "weights"_a.noconvert(), "thresholds"_a.noconvert(),
        "aliases"_a.noconvert());
  m.def("distinct_nodes", &py_distinct, "visits"_a.noconvert(), "multiple"_a, "seed"_a, "number"_a);
  m.def("induce", &py_induce, "topology"_a, "nodes"_a.noconvert());
  m.def("sample_fan_out", &py_fan_out, "topology"_a, "targets"_a.noconvert(), "fan_out"_a, "seed"_a,
        "number"_a);
}
