// Bindings of hpcgnn.partition._volpart. Defaults and documentation live in the Python face.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "volpart/clusters.h"
#include "volpart/part_graph.h"
#include "volpart/share.h"
#include "volpart/sketch.h"
#include "volpart/streaming.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hpcgnn::volpart {
namespace {

template <class T>
using Vector = nb::ndarray<T, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Offsets = Vector<const std::int64_t>;
using Parts = Vector<const std::int32_t>;
using MetricsDict = nb::typed<nb::dict, nb::str, nb::any>;
template <class Index>
using Indices = Vector<const Index>;

template <class T>
std::span<const T> view(const Vector<const T>& array) {
  return {array.data(), array.shape(0)};
}

Objective objective_of(const std::string& name) {
  static const std::map<std::string, Objective> kNames{{"total", Objective::kTotal},
                                                       {"max_send", Objective::kMaxSend},
                                                       {"max_recv", Objective::kMaxRecv},
                                                       {"max_both", Objective::kMaxBoth},
                                                       {"joint", Objective::kJoint}};
  const auto found = kNames.find(name);
  if (found == kNames.end()) throw std::invalid_argument("no objective '" + name + "'");
  return found->second;
}

Preset preset_of(const std::string& name) {
  if (name == "fast") return Preset::kFast;
  if (name == "default") return Preset::kDefault;
  throw std::invalid_argument("no preset '" + name + "'");
}

MetricsDict as_dict(const Metrics& metrics) {
  MetricsDict found;
  found["edge_cut"] = metrics.edge_cut;
  found["total_rows"] = metrics.total_rows;
  found["max_send_rows"] = metrics.max_send_rows;
  found["max_recv_rows"] = metrics.max_recv_rows;
  found["max_pair_rows"] = metrics.max_pair_rows;
  found["imbalance"] = metrics.imbalance;
  return found;
}

template <class T>
Vector<T> as_array(std::vector<T> values) {
  auto kept = std::make_unique<std::vector<T>>(std::move(values));
  T* const data = kept->data();
  const std::size_t size = kept->size();
  nb::capsule owner(kept.get(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  kept.release();
  return Vector<T>(data, {size}, owner);
}

template <class Index>
std::tuple<Vector<std::int32_t>, MetricsDict, std::string> py_part_graph(
    int num_parts, const Offsets& indptr, const Indices<Index>& indices,
    const std::optional<Offsets>& weights,
    const std::vector<std::pair<std::string, std::optional<Parts>>>& starts,
    const std::string& objective, const std::string& preset, double imbalance, std::uint64_t seed,
    int threads, double time_limit_s, const Report& report) {
  const CsrView csr(view(indptr), view(indices));
  std::vector<Start> given;
  for (const auto& [name, part] : starts)
    given.push_back({name, part ? std::optional(view(*part)) : std::nullopt});
  const Options options{
      objective_of(objective), preset_of(preset), imbalance, seed, threads, time_limit_s};
  const Report tell = [&](const std::string& text, double seconds) {
    const nb::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (report) report(text, seconds);
  };
  Result result;
  {
    const nb::gil_scoped_release unlocked;
    result = part_graph(csr, num_parts, weights ? view(*weights) : std::span<const std::int64_t>{},
                        given, options, tell);
  }
  return {as_array(std::move(result.part)), as_dict(result.metrics), result.winner};
}

template <class Index>
std::tuple<Vector<std::int32_t>, Vector<std::int64_t>, Vector<std::int32_t>, Vector<std::int32_t>,
           Vector<std::int64_t>>
py_sketch(int num_parts, const Offsets& indptr, const Indices<Index>& indices,
          const std::optional<Offsets>& weights, std::int64_t max_edges, std::uint64_t seed) {
  const CsrView csr(view(indptr), view(indices));
  Sketch found;
  {
    const nb::gil_scoped_release unlocked;
    found = sketch(csr, num_parts, weights ? view(*weights) : std::span<const std::int64_t>{},
                   max_edges, seed);
  }
  return {as_array(std::move(found.cluster)), as_array(std::move(found.indptr)),
          as_array(std::move(found.indices)), as_array(std::move(found.edge_weight)),
          as_array(std::move(found.vertex_weight))};
}

/// Packed numbers in the memory of an array, which must be long enough.
Packed packed_in(const Vector<std::uint8_t>& bytes, std::uint64_t limit, std::size_t size) {
  if (bytes.shape(0) < Packed::bytes_of(limit, size))
    throw std::invalid_argument("packed numbers take more bytes");
  return Packed::over(bytes.data(), limit, size);
}

Vector<std::uint8_t> py_pack(const Parts& values, std::uint64_t limit) {
  std::vector<std::uint8_t> bytes(Packed::bytes_of(limit, values.shape(0)));
  Packed packed = Packed::over(bytes.data(), limit, values.shape(0));
  for (std::size_t k = 0; k < values.shape(0); ++k) {
    const std::int32_t value = values.data()[k];
    if (value < 0 || static_cast<std::uint64_t>(value) >= limit)
      throw std::invalid_argument("a number to pack is out of range");
    packed.set(k, static_cast<std::uint32_t>(value));
  }
  return as_array(std::move(bytes));
}

Vector<std::int32_t> py_unpack(const Vector<std::uint8_t>& bytes, std::uint64_t limit,
                               const Offsets& positions) {
  const auto most = std::ranges::max_element(view(positions));
  const bool any = positions.shape(0) > 0;
  const Packed packed =
      packed_in(bytes, limit, any ? static_cast<std::size_t>(*most) + 1 : std::size_t{0});
  std::vector<std::int32_t> values;
  values.reserve(positions.shape(0));
  for (const std::int64_t position : view(positions)) {
    if (position < 0) throw std::invalid_argument("a position is below 0");
    values.push_back(static_cast<std::int32_t>(packed[static_cast<std::size_t>(position)]));
  }
  return as_array(std::move(values));
}

/// A share from its arrays, in the order of the fields of `Share`.
Share share_of(int num_parts, int num_own, const Offsets& indptr, const Vector<std::uint8_t>& nets,
               const Parts& net_owner, const Vector<const std::uint8_t>& net_push,
               const Offsets& weights, const Parts& part) {
  const std::size_t num_pins =
      indptr.shape(0) == 0 ? 0 : static_cast<std::size_t>(view(indptr).back());
  return {
      num_parts,       num_own,        view(indptr),  packed_in(nets, net_owner.shape(0), num_pins),
      view(net_owner), view(net_push), view(weights), view(part)};
}

using ShareArrays = std::tuple<int, int, Offsets, Vector<std::uint8_t>, Parts,
                               Vector<const std::uint8_t>, Offsets, Parts>;

Share share_of(const ShareArrays& arrays) {
  return std::apply([](const auto&... each) { return share_of(each...); }, arrays);
}

MetricsDict py_count_share(const ShareArrays& arrays) {
  const Share share = share_of(arrays);
  ShareCounts counts;
  {
    const nb::gil_scoped_release unlocked;
    counts = count_share(share);
  }
  MetricsDict found;
  found["parts"] = as_array(std::move(counts.parts));
  found["owner_holds"] = as_array(std::move(counts.owner_holds));
  found["fetched"] = as_array(std::move(counts.fetched));
  found["pushed"] = as_array(std::move(counts.pushed));
  found["nearest"] = as_array(std::move(counts.nearest));
  found["nearest_nets"] = as_array(std::move(counts.nearest_nets));
  found["cut_pins"] = counts.cut_pins;
  found["max_pair_rows"] = counts.max_pair_rows;
  return found;
}

std::int64_t py_receive_bound(const ShareArrays& arrays, const Offsets& owner_weight,
                              double average_weight, double imbalance) {
  const Share share = share_of(arrays);
  const nb::gil_scoped_release unlocked;
  return receive_bound(share, view(owner_weight), average_weight, imbalance);
}

Vector<std::int32_t> py_refine_share(const ShareArrays& arrays, std::int64_t total_weight,
                                     const Offsets& outside_load, const Offsets& load,
                                     std::int64_t bound, const std::string& objective,
                                     const std::string& preset, double imbalance,
                                     std::uint64_t seed, const std::pair<int, int>& cycle,
                                     const std::function<Offsets(Vector<std::int64_t>)>& sum) {
  Share share = share_of(arrays);
  const Whole whole{total_weight, view(outside_load), view(load), bound};
  Options options;
  options.objective = objective_of(objective);
  options.preset = preset_of(preset);
  options.imbalance = imbalance;
  options.seed = seed;
  const SumOverShares over_shares = [&](const Loads& own) -> Loads {
    const nb::gil_scoped_acquire locked;
    const Offsets total = sum(as_array(Loads(own)));
    if (total.shape(0) != own.size()) throw std::invalid_argument("a sum has another length");
    return {total.data(), total.data() + total.shape(0)};
  };
  std::vector<std::int32_t> part;
  {
    const nb::gil_scoped_release unlocked;
    part = refine_share(share, whole, options, cycle.first, cycle.second, over_shares);
  }
  return as_array(std::move(part));
}

Vector<std::int64_t> py_best_cluster(const Offsets& indptr, const Parts& columns,
                                     const Parts& edges, const Vector<const double>& share,
                                     const Offsets& cluster, const Vector<const std::uint8_t>& open,
                                     const Vector<const std::uint8_t>& asks, std::uint64_t seed) {
  const GraphRows graph{view(indptr), view(columns), view(edges), view(share)};
  std::vector<std::int64_t> found;
  {
    const nb::gil_scoped_release unlocked;
    found = best_cluster(graph, view(cluster), view(open), view(asks), seed);
  }
  return as_array(std::move(found));
}

template <class Index>
std::tuple<Vector<std::int32_t>, Vector<Index>, Vector<std::int32_t>> py_sample_edges(
    const Offsets& indptr, const Indices<Index>& columns, const Parts& edges, const Offsets& names,
    const Vector<const double>& row_share, const Vector<const double>& share,
    const std::tuple<std::int64_t, double, std::int32_t, std::uint64_t>& terms) {
  const auto& [first, density, heaviest, seed] = terms;
  const SampledRows<Index> rows{view(indptr), view(columns),   view(edges), view(names),
                                first,        view(row_share), view(share)};
  EdgeSample<Index> found;
  {
    const nb::gil_scoped_release unlocked;
    found = sample_edges(rows, density, heaviest, seed);
  }
  return {as_array(std::move(found.row)), as_array(std::move(found.column)),
          as_array(std::move(found.edges))};
}

template <class Index>
void py_check(const Offsets& indptr, const Indices<Index>& indices) {
  const CsrView csr(view(indptr), view(indices));
  const nb::gil_scoped_release unlocked;
  csr.check();
}

template <class Index>
MetricsDict py_measure(int num_parts, const Offsets& indptr, const Indices<Index>& indices,
                       const Parts& part) {
  const CsrView csr(view(indptr), view(indices));
  const nb::gil_scoped_release unlocked;
  csr.check();
  check_parts(csr, view(part), num_parts);
  const Metrics metrics = measure(csr, view(part), num_parts, {});
  const nb::gil_scoped_acquire locked;
  return as_dict(metrics);
}

template <class Index>
StreamedRows<Index> streamed(std::int64_t first, const Offsets& indptr,
                             const Indices<Index>& columns, std::size_t num_vertices) {
  const StreamedRows<Index> rows{first, view(indptr), view(columns)};
  rows.check(num_vertices);
  return rows;
}

template <class T>
std::span<T> open(const Vector<T>& array) {
  return {array.data(), array.shape(0)};
}

template <class Index>
std::int64_t py_assign_rows(std::int64_t first, const Offsets& indptr,
                            const Indices<Index>& columns, const Offsets& work,
                            const Vector<std::int32_t>& part, const Vector<std::int64_t>& load,
                            double capacity) {
  if (work.shape(0) != part.shape(0))
    throw std::invalid_argument("there must be work for each vertex");
  const nb::gil_scoped_release unlocked;
  return assign_rows(streamed(first, indptr, columns, part.shape(0)), view(work), open(part),
                     open(load), capacity);
}

void py_mark_readers(const Vector<const std::int64_t>& vertices, const Parts& part,
                     std::int32_t base, const Vector<std::uint64_t>& readers) {
  const nb::gil_scoped_release unlocked;
  mark_readers(view(vertices), view(part), base, open(readers));
}

void py_count_readers(const Vector<const std::uint64_t>& readers, const Parts& part,
                      std::int32_t base, const Vector<std::int64_t>& counts) {
  const nb::gil_scoped_release unlocked;
  count_readers(view(readers), view(part), base, open(counts));
}

template <class Index>
void define(nb::module_& m) {
  m.def("assign_rows", &py_assign_rows<Index>, "first"_a, "indptr"_a.noconvert(),
        "columns"_a.noconvert(), "work"_a.noconvert(), "part"_a.noconvert(), "load"_a.noconvert(),
        "capacity"_a);
  m.def("part_graph", &py_part_graph<Index>, "num_parts"_a, "indptr"_a.noconvert(),
        "indices"_a.noconvert(), "weights"_a.noconvert().none(), "starts"_a, "objective"_a,
        "preset"_a, "imbalance"_a, "seed"_a, "threads"_a, "time_limit_s"_a, "report"_a.none());
  m.def("sketch", &py_sketch<Index>, "num_parts"_a, "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "weights"_a.noconvert().none(), "max_edges"_a, "seed"_a);
  m.def("sample_edges", &py_sample_edges<Index>, "indptr"_a.noconvert(), "columns"_a.noconvert(),
        "edges"_a.noconvert(), "names"_a.noconvert(), "row_share"_a.noconvert(),
        "share"_a.noconvert(), "terms"_a);
  m.def("check", &py_check<Index>, "indptr"_a.noconvert(), "indices"_a.noconvert());
  m.def("measure", &py_measure<Index>, "num_parts"_a, "indptr"_a.noconvert(),
        "indices"_a.noconvert(), "part"_a.noconvert());
}

NB_MODULE(_volpart, m) {
  define<std::int32_t>(m);
  define<std::int64_t>(m);
  m.attr("MAX_PARTS") = kMaxParts;
  m.attr("NEAREST") = kNearest;
  m.attr("MARKED") = kMarked;
  m.def("mark_readers", &py_mark_readers, "vertices"_a.noconvert(), "part"_a.noconvert(), "base"_a,
        "readers"_a.noconvert());
  m.def("count_readers", &py_count_readers, "readers"_a.noconvert(), "part"_a.noconvert(), "base"_a,
        "counts"_a.noconvert());
  m.def("best_cluster", &py_best_cluster, "indptr"_a, "columns"_a, "edges"_a, "share"_a,
        "cluster"_a, "open"_a, "asks"_a, "seed"_a);
  m.def("pack", &py_pack, "values"_a, "limit"_a);
  m.def("unpack", &py_unpack, "packed"_a, "limit"_a, "positions"_a);
  m.def("count_share", &py_count_share, "share"_a);
  m.def("receive_bound", &py_receive_bound, "share"_a, "owner_weight"_a, "average_weight"_a,
        "imbalance"_a);
  m.def("refine_share", &py_refine_share, "share"_a, "total_weight"_a, "outside_load"_a, "load"_a,
        "receive_bound"_a, "objective"_a, "preset"_a, "imbalance"_a, "seed"_a, "cycle"_a, "sum"_a);
}

}  // namespace
}  // namespace hpcgnn::volpart
