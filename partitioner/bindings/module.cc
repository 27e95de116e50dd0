// Bindings of hpcgnn.partition._volpart. Defaults and documentation live in the Python face.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "volpart/part_graph.h"
#include "volpart/sketch.h"

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
void define(nb::module_& m) {
  m.def("part_graph", &py_part_graph<Index>, "num_parts"_a, "indptr"_a.noconvert(),
        "indices"_a.noconvert(), "weights"_a.noconvert().none(), "starts"_a, "objective"_a,
        "preset"_a, "imbalance"_a, "seed"_a, "threads"_a, "time_limit_s"_a, "report"_a.none());
  m.def("sketch", &py_sketch<Index>, "num_parts"_a, "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "weights"_a.noconvert().none(), "max_edges"_a, "seed"_a);
  m.def("check", &py_check<Index>, "indptr"_a.noconvert(), "indices"_a.noconvert());
  m.def("measure", &py_measure<Index>, "num_parts"_a, "indptr"_a.noconvert(),
        "indices"_a.noconvert(), "part"_a.noconvert());
}

NB_MODULE(_volpart, m) {
  define<std::int32_t>(m);
  define<std::int64_t>(m);
}

}  // namespace
}  // namespace hpcgnn::volpart
