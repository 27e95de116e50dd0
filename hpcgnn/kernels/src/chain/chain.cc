#include "chain/chain.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hpcgnn::kernels {

namespace {

std::vector<std::vector<Buffer>> pack_all(const ChainArguments& a, bool turned) {
  std::vector<std::vector<Buffer>> all;
  for (const ChainMap& map : a.maps) {
    std::vector<Buffer>& panels = all.emplace_back();
    for (const ChainPart& part : map.parts) {
      const MatrixView matrix = turned
                                    ? MatrixView{part.data, map.width, part.columns, part.pitch, 1}
                                    : MatrixView{part.data, part.columns, map.width, 1, part.pitch};
      panels.push_back(pack(matrix, a.storage, a.isa));
    }
  }
  return all;
}

}  // namespace

Chain::Chain(ChainArguments arguments) : a_(std::move(arguments)) {}

void* Chain::scratch(std::size_t map, std::int64_t num_rows) {
  if (scratch_rows_ < num_rows) {
    scratch_.clear();
    for (const ChainMap& of : a_.maps)
      scratch_.emplace_back(num_rows * of.width * storage_bytes(a_.storage));
    scratch_rows_ = num_rows;
  }
  return scratch_[map].get();
}

void Chain::forward(const std::vector<const void*>& inputs, std::int64_t num_rows,
                    const ChainEnds& ends, bool has_ends, const std::vector<void*>& results) {
  if (panels_.empty()) panels_ = pack_all(a_, false);
  std::vector<const void*> read = inputs;
  for (std::size_t number = 0; number < results.size(); ++number) {
    const ChainMap& map = a_.maps[number];
    void* const result = results[number];
    for (std::size_t k = 0; k < read.size(); ++k)
      multiply({read[k], panels_[number][k].get(), k ? result : nullptr, result, num_rows,
                map.parts[k].columns, map.width},
               a_.storage, a_.num_threads, a_.isa);
    if (read.empty())
      std::memset(result, 0,
                  static_cast<std::size_t>(num_rows * map.width * storage_bytes(a_.storage)));
    const bool is_last = number + 1 == a_.maps.size();
    if (is_last && !(has_ends && number == 0)) return;
    const ChainEnds there = number == 0 ? ends : ChainEnds{};
    // The bias of the last map is added by the norm.
    combine_rows({.rows = result,
                  .targets = there.targets,
                  .target_ids = there.target_ids,
                  .sources = there.sources,
                  .source_ids = there.source_ids,
                  .bias = is_last ? nullptr : map.bias,
                  .out = result,
                  .num_rows = num_rows,
                  .width = map.width,
                  .activation = is_last ? Activation::kNone : a_.activation,
                  .storage = a_.storage,
                  .num_threads = a_.num_threads,
                  .isa = a_.isa});
    read = {result};
  }
}

void Chain::backward(const std::vector<const void*>& inputs, const std::vector<void*>& of_inputs,
                     std::int64_t num_rows, const ChainEnds& of_ends, bool has_ends,
                     const std::vector<const void*>& results, const void* gradient) {
  if (turned_.empty()) turned_ = pack_all(a_, true);
  const bool wanted = !a_.of_maps.empty();
  const auto of_bias = [&](std::size_t number) {
    return wanted ? a_.of_maps[number].bias : nullptr;
  };
  const auto combine = [&](void* rows, const void* result, std::size_t number, const ChainEnds& of,
                           void* bias) {
    combine_rows_gradient({.gradient = rows,
                           .result = result,
                           .out = rows,
                           .of_targets = of.targets,
                           .target_ids = of.target_ids,
                           .num_targets = of.num_targets,
                           .of_sources = of.sources,
                           .source_ids = of.source_ids,
                           .num_sources = of.num_sources,
                           .of_bias = bias,
                           .num_rows = num_rows,
                           .width = a_.maps[number].width,
                           .activation = result ? a_.activation : Activation::kNone,
                           .storage = a_.storage,
                           .num_threads = a_.num_threads,
                           .isa = a_.isa});
  };
  const std::size_t last = a_.maps.size() - 1;
  const void* upper = gradient;
  if (!ends_in_product()) {
    void* const out = scratch(last, num_rows);
    // Without a norm, the result of the last map is not read.
    norm_rows_gradient({.norm = {.rows = results.size() > last ? results[last] : gradient,
                                 .bias = a_.maps[last].bias,
                                 .scale = a_.norm.scale,
                                 .shift = a_.norm.shift,
                                 .residual = nullptr,
                                 .out = nullptr,
                                 .num_rows = num_rows,
                                 .width = a_.maps[last].width,
                                 .eps = a_.norm.eps,
                                 .storage = a_.storage,
                                 .num_threads = a_.num_threads,
                                 .isa = a_.isa},
                        .gradient = gradient,
                        .out = out,
                        .of_bias = of_bias(last),
                        .of_scale = a_.of_norm.scale,
                        .of_shift = a_.of_norm.shift});
    upper = out;
  }
  if (last == 0 && has_ends) {
    void* const out = scratch(last, num_rows);
    if (upper != out)
      std::memcpy(
          out, upper,
          static_cast<std::size_t>(num_rows * a_.maps[0].width * storage_bytes(a_.storage)));
    combine(out, nullptr, 0, of_ends, nullptr);
    upper = out;
  }
  for (std::size_t number = last + 1; number-- > 0;) {
    const ChainMap& map = a_.maps[number];
    for (std::size_t k = 0; wanted && k < map.parts.size(); ++k) {
      const ChainPart& total = a_.of_maps[number].parts[k];
      if (total.data != nullptr)
        contract({upper, number ? results[number - 1] : inputs[k], total.data, num_rows, map.width,
                  total.columns, total.pitch},
                 a_.storage, a_.num_threads, a_.isa);
    }
    if (number == 0) break;
    void* const product = scratch(number - 1, num_rows);
    const std::int64_t columns = a_.maps[number - 1].width;
    multiply({upper, turned_[number][0].get(), nullptr, product, num_rows, map.width, columns},
             a_.storage, a_.num_threads, a_.isa);
    combine(product, results[number - 1], number - 1, number == 1 ? of_ends : ChainEnds{},
            of_bias(number - 1));
    upper = product;
  }
  for (std::size_t k = 0; k < of_inputs.size(); ++k) {
    if (of_inputs[k] == nullptr) continue;
    const void* const from = k == 0 && a_.residual ? gradient : nullptr;
    multiply({upper, turned_[0][k].get(), from, of_inputs[k], num_rows, a_.maps[0].width,
              a_.maps[0].parts[k].columns},
             a_.storage, a_.num_threads, a_.isa);
  }
}

}  // namespace hpcgnn::kernels
