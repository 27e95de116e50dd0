/// Chains of linear maps on blocks of rows, with what stands between them: one call a block.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "chain/products.h"
#include "messages/messages.h"

namespace hpcgnn::kernels {

/// A matrix of some inputs side by side and its bias, or the gradients of both.
struct ChainPart {
  void* data;  ///< out by `columns`; null = not wanted
  std::int64_t columns, pitch;
};
struct ChainMap {
  std::vector<ChainPart> parts;  ///< one of each input
  void* bias;                    ///< null = none
  std::int64_t width;            ///< rows of each part: columns of the result
};
struct ChainNorm {
  void* scale;  ///< null = no norm, and no shift
  void* shift;
  double eps;
};

/// Rows that the ends of edges give to the first map, or the gradients of these; see
/// CombineArguments and CombineGradient.
struct ChainEnds {
  void* targets;
  const std::int32_t* target_ids;
  std::int64_t num_targets;
  void* sources;
  const std::int32_t* source_ids;
  std::int64_t num_sources;
};

/// Of a chain, everything but its rows.
struct ChainArguments {
  std::vector<ChainMap> maps;
  ChainNorm norm;
  /// Gradients that are added to, of the same shape; empty = none are wanted.
  std::vector<ChainMap> of_maps;
  ChainNorm of_norm;
  bool residual;
  Activation activation;
  Storage storage;  ///< kFloat32 or kFloat64
  int num_threads;
  Isa isa;
};

class Chain {
 public:
  explicit Chain(ChainArguments arguments);
  Chain(Chain&&) = default;

  const ChainArguments& arguments() const { return a_; }

  /// Write what the first maps give, one for each of `results`, activated but for the last map.
  /// `has_ends` says whether the rows are edges, some of which have ends that give nothing.
  void forward(const std::vector<const void*>& inputs, std::int64_t num_rows, const ChainEnds& ends,
               bool has_ends, const std::vector<void*>& results);

  /// Write the gradients of the inputs, of which null ones are not wanted, and add those of ends
  /// and parameters. `results` are what `forward` wrote, the last one if there is a norm.
  void backward(const std::vector<const void*>& inputs, const std::vector<void*>& of_inputs,
                std::int64_t num_rows, const ChainEnds& of_ends, bool has_ends,
                const std::vector<const void*>& results, const void* gradient);

 private:
  bool ends_in_product() const {
    return a_.norm.scale == nullptr && a_.maps.back().bias == nullptr && !a_.residual;
  }
  void* scratch(std::size_t map, std::int64_t num_rows);

  ChainArguments a_;
  /// Matrices as products forward and backward read them, from the first of these on.
  std::vector<std::vector<Buffer>> panels_, turned_;
  std::vector<Buffer> scratch_;
  std::int64_t scratch_rows_ = 0;
};

}  // namespace hpcgnn::kernels
