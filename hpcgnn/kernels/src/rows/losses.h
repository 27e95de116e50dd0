/// Cross entropies of softmaxes of rows and of sigmoids of elements, with their gradients, which
/// share the exponentials. All arrays have the type of the logits.
#pragma once

#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

/// Where to write scale factors[i] times the gradient of loss i, of the shape of the logits.
struct LossGradient {
  const void* factors;  ///< null = ones
  double scale;
  void* out;  ///< null = not wanted; may be the logits
};

/// The logits of softmaxes and their targets: in row i the class labels[i] has 1 - smoothing, and
/// all classes have equal shares of the rest.
struct SoftmaxTargets {
  const void* logits;  ///< num_rows by width, float32 or float64
  const std::int64_t* labels;
  std::int64_t num_rows;
  std::int64_t width;
  double smoothing;
  Storage storage;
  int num_threads;  ///< 0 = OpenMP default
  Isa isa;
};

/// losses[i] = -sum over c of target[i, c] log softmax(logits[i])[c].
struct SoftmaxLoss {
  SoftmaxTargets targets;
  void* losses;
  LossGradient gradient;
};

/// The logits of sigmoids and their targets, in [0, 1].
struct SigmoidTargets {
  const void* logits;   ///< num_rows by width, float32 or float64
  const void* targets;  ///< like the logits
  std::int64_t num_rows;
  std::int64_t width;
  Storage storage;
  int num_threads;  ///< 0 = OpenMP default
  Isa isa;
};

/// losses[i] = sum over c of log(1 + exp(logits[i, c])) - targets[i, c] logits[i, c].
struct SigmoidLoss {
  SigmoidTargets targets;
  void* losses;
  LossGradient gradient;
};

/// @pre every label is a class.
void softmax_loss(const SoftmaxLoss& arguments);
void sigmoid_loss(const SigmoidLoss& arguments);

/// Kernels by storage type, for rows [first, last); null where the type is not offered.
template <class Loss>
struct LossTable {
  void (*loss[kNumStorages])(const Loss&, std::int64_t first, std::int64_t last);
};

using SoftmaxLossTable = LossTable<SoftmaxLoss>;
using SigmoidLossTable = LossTable<SigmoidLoss>;

}  // namespace hpcgnn::kernels
