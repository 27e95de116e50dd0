/// Chains of linear maps on blocks of rows, with activations and norms: one call for each block.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dense/products.h"
#include "messages/messages.h"

namespace hpcgnn::kernels {

/// The columns of a matrix for one of the inputs side by side, or their gradients.
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

/// Rows of the edges' ends that are added to the result of the first map, or their gradients; see
/// CombineArguments and CombineGradient.
struct ChainEnds {
  void* targets;
  const std::int32_t* target_ids;
  std::int64_t num_targets;
  void* sources;
  const std::int32_t* source_ids;
  std::int64_t num_sources;
};

/// Everything of a chain except its rows.
struct ChainArguments {
  std::vector<ChainMap> maps;
  ChainNorm norm;
  /// Gradients to add to, of the same shapes; empty = not wanted.
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

  /// Write the results of the first maps, one for each of `results`, activated except for the last
  /// map. `has_ends` tells whether the rows are edges, even if `ends` has no rows to add.
  void forward(const std::vector<const void*>& inputs, std::int64_t num_rows, const ChainEnds& ends,
               bool has_ends, const std::vector<void*>& results);

  /// Write the gradients of the inputs (null = not wanted), and add those of ends and parameters.
  /// `results` are those that `forward` wrote, with the last one if there is a norm.
  void backward(const std::vector<const void*>& inputs, const std::vector<void*>& of_inputs,
                std::int64_t num_rows, const ChainEnds& of_ends, bool has_ends,
                const std::vector<const void*>& results, const void* gradient);

 private:
  bool ends_in_product() const {
    return a_.norm.scale == nullptr && a_.maps.back().bias == nullptr && !a_.residual;
  }
  void* scratch(std::size_t map, std::int64_t num_rows);

  ChainArguments a_;
  /// Matrices in the form that forward and backward products read, packed when first used.
  std::vector<std::vector<Buffer>> panels_, turned_;
  std::vector<Buffer> scratch_;
  std::int64_t scratch_rows_ = 0;
};

}  // namespace hpcgnn::kernels
