#include "bindings.h"

#include <utility>

#include "chain/chain.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

nb::dlpack::dtype dtype_of(Storage storage) {
  return storage == Storage::kFloat64 ? nb::dtype<double>() : nb::dtype<float>();
}

void require_dtype(const char* name, const auto& array, Storage storage) {
  if (array.dtype() != dtype_of(storage))
    throw nb::type_error((std::string(name) + " must be " + dtype_text(dtype_of(storage)) +
                          ", as the matrices are, not " + dtype_text(array.dtype()))
                             .c_str());
}

void require_shape(const char* name, const auto& array, std::int64_t rows, std::int64_t columns) {
  if (extent(array, 0) != rows || extent(array, 1) != columns)
    throw std::invalid_argument(
        std::string(name) + " must be " + std::to_string(rows) + " by " + std::to_string(columns) +
        ", not " + std::to_string(extent(array, 0)) + " by " + std::to_string(extent(array, 1)));
}

/// The data of a vector with one number for each column; null for none.
void* by_column(const char* name, nb::handle value, Storage storage, std::int64_t width) {
  const auto array = take<std::optional<AnyVector>>(value, name);
  if (!array) return nullptr;
  require_dtype(name, *array, storage);
  if (extent(*array, 0) != width)
    throw std::invalid_argument(std::string(name) + " must have a number a column");
  return const_cast<void*>(array->data());
}

/// Maps, or their gradients, each as (matrices, vector or None, columns of the result).
std::vector<ChainMap> maps_of(const char* name, nb::handle maps, Storage storage) {
  std::vector<ChainMap> found;
  for (const nb::handle each : maps) {
    ChainMap map{{}, nullptr, take<std::int64_t>(each[2], "width")};
    map.bias = by_column("bias", each[1], storage, map.width);
    for (const nb::handle part : each[0]) {
      const auto array = take<std::optional<AnyPitched>>(part, name);
      if (array) {
        require_dtype(name, *array, storage);
        require(extent(*array, 0) == map.width, "matrices must have a row for each column");
      }
      map.parts.push_back(
          array ? ChainPart{const_cast<void*>(array->data()), extent(*array, 1), row_pitch(*array)}
                : ChainPart{nullptr, 0, 0});
    }
    found.push_back(std::move(map));
  }
  return found;
}

Chain py_make_chain(nb::handle maps, nb::handle scale, nb::handle shift, double eps,
                    nb::handle of_maps, nb::handle of_scale, nb::handle of_shift, bool residual,
                    const std::string& activation, bool is_wide, int threads,
                    const std::string& isa) {
  const Storage storage = is_wide ? Storage::kFloat64 : Storage::kFloat32;
  ChainArguments a{};
  a.maps = maps_of("maps", maps, storage);
  require(!a.maps.empty(), "maps must not be empty");
  if (!of_maps.is_none()) a.of_maps = maps_of("of_maps", of_maps, storage);
  require(of_maps.is_none() || a.of_maps.size() == a.maps.size(), "of_maps must be those of maps");
  for (std::size_t number = 0; number < a.maps.size(); ++number) {
    const ChainMap& map = a.maps[number];
    for (const ChainPart& part : map.parts)
      require(part.data != nullptr, "maps must have all of their matrices");
    require(
        number == 0 || (map.parts.size() == 1 && map.parts[0].columns == a.maps[number - 1].width),
        "each map must read what the one before it gives");
    if (of_maps.is_none()) continue;
    const ChainMap& of = a.of_maps[number];
    require(of.width == map.width && of.parts.size() == map.parts.size(),
            "of_maps must have the shapes of maps");
    for (std::size_t k = 0; k < of.parts.size(); ++k)
      require(of.parts[k].data == nullptr || of.parts[k].columns == map.parts[k].columns,
              "of_maps must have the shapes of maps");
  }
  const std::int64_t width = a.maps.back().width;
  a.norm = {by_column("scale", scale, storage, width), by_column("shift", shift, storage, width),
            eps};
  require((a.norm.scale == nullptr) == (a.norm.shift == nullptr),
          "a norm has scale and shift, or neither");
  a.of_norm = {by_column("of_scale", of_scale, storage, width),
               by_column("of_shift", of_shift, storage, width), eps};
  a.residual = residual;
  a.activation = parse_activation(activation);
  a.storage = storage;
  a.num_threads = threads;
  a.isa = parse_isa(isa);
  return Chain(std::move(a));
}

/// The data of rows of some width; null for None, where that is allowed.
const void* rows_of(const char* name, nb::handle value, const Chain& chain, std::int64_t num_rows,
                    std::int64_t width) {
  const auto array = take<std::optional<AnyMatrix>>(value, name);
  if (!array) return nullptr;
  require_dtype(name, *array, chain.arguments().storage);
  require_shape(name, *array, num_rows, width);
  return array->data();
}

ChainEnds ends_of(const Chain& chain, nb::handle ends, std::int64_t num_rows) {
  ChainEnds found{};
  if (ends.is_none()) return found;
  const std::int64_t width = chain.arguments().maps[0].width;
  const auto take_end = [&](int place, const char* name, void*& rows, const std::int32_t*& ids,
                            std::int64_t& count) {
    const auto array = take<std::optional<AnyMatrix>>(ends[place], name);
    if (!array) return;
    require_dtype(name, *array, chain.arguments().storage);
    count = extent(*array, 0);
    require_shape(name, *array, count, width);
    const auto numbers = take<Indices>(ends[place + 1], name);
    require(extent(numbers, 0) == num_rows, "ends must have an id for each row");
    check_range(name, numbers.data(), num_rows, count);
    rows = const_cast<void*>(array->data());
    ids = numbers.data();
  };
  take_end(0, "targets", found.targets, found.target_ids, found.num_targets);
  take_end(2, "sources", found.sources, found.source_ids, found.num_sources);
  return found;
}

std::vector<const void*> inputs_of(const char* name, nb::handle inputs, const Chain& chain,
                                   std::int64_t num_rows) {
  std::vector<const void*> found;
  const std::vector<ChainPart>& parts = chain.arguments().maps[0].parts;
  for (const nb::handle each : inputs) {
    require(found.size() < parts.size(), "there are more inputs than matrices");
    found.push_back(rows_of(name, each, chain, num_rows, parts[found.size()].columns));
  }
  require(found.size() == parts.size(), "there are fewer inputs than matrices");
  return found;
}

std::vector<void*> results_of(nb::handle results, const Chain& chain, std::int64_t num_rows) {
  std::vector<void*> found;
  const std::vector<ChainMap>& maps = chain.arguments().maps;
  for (const nb::handle each : results) {
    require(found.size() < maps.size(), "there are more results than maps");
    const void* const rows = rows_of("results", each, chain, num_rows, maps[found.size()].width);
    require(rows != nullptr, "results must be arrays");
    found.push_back(const_cast<void*>(rows));
  }
  return found;
}

void py_chain_forward(Chain* chain, std::int64_t num_rows, nb::handle inputs, nb::handle ends,
                      nb::handle results) {
  require(chain != nullptr, "chain must be a Chain");
  const auto read = inputs_of("inputs", inputs, *chain, num_rows);
  for (const void* each : read) require(each != nullptr, "inputs must be arrays");
  const ChainEnds there = ends_of(*chain, ends, num_rows);
  const auto written = results_of(results, *chain, num_rows);
  const bool has_ends = !ends.is_none();
  nb::gil_scoped_release unlocked;
  chain->forward(read, num_rows, there, has_ends, written);
}

void py_chain_backward(Chain* chain, std::int64_t num_rows, nb::handle inputs, nb::handle of_inputs,
                       nb::handle of_ends, nb::handle results, nb::handle gradient) {
  require(chain != nullptr, "chain must be a Chain");
  const std::vector<ChainMap>& maps = chain->arguments().maps;
  const auto read = inputs_of("inputs", inputs, *chain, num_rows);
  for (const void* each : read) require(each != nullptr, "inputs must be arrays");
  std::vector<void*> written;
  for (const void* each : inputs_of("of_inputs", of_inputs, *chain, num_rows))
    written.push_back(const_cast<void*>(each));
  const ChainEnds there = ends_of(*chain, of_ends, num_rows);
  const auto taken = results_of(results, *chain, num_rows);
  require(taken.size() + (chain->arguments().norm.scale == nullptr) >= maps.size(),
          "results of maps are missing");
  const std::vector<const void*> given(taken.begin(), taken.end());
  const void* const upper = rows_of("gradient", gradient, *chain, num_rows, maps.back().width);
  require(upper != nullptr, "gradient must be an array");
  const bool has_ends = !of_ends.is_none();
  nb::gil_scoped_release unlocked;
  chain->backward(read, written, num_rows, there, has_ends, given, upper);
}

}  // namespace

void bind_chain(nb::module_& m) {
  nb::class_<Chain>(m, "Chain", "Linear maps and what stands between them; see `make_chain`.");
  define(m, "make_chain", &py_make_chain,
         {"maps", "scale", "shift", "eps", "of_maps", "of_scale", "of_shift", "residual",
          "activation", "is_wide", "threads", "isa"});
  define(m, "chain_forward", &py_chain_forward, {"chain", "num_rows", "inputs", "ends", "results"});
  define(m, "chain_backward", &py_chain_backward,
         {"chain", "num_rows", "inputs", "of_inputs", "of_ends", "results", "gradient"});
}

}  // namespace hpcgnn::kernels
