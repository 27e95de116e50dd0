/// The cross entropy of softmaxes, a row each, and its gradient; neither keeps a matrix.
#pragma once

#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

/// The rows that softmaxes are taken of, and their targets: of row i the class labels[i] has
/// 1 - smoothing, and all classes together have the rest in equal shares.
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

/// losses[i] = -sum over c of target[i, c] log softmax(logits[i])[c]; state[i] is what the gradient
/// needs of the softmax: its largest logit and the sum of exp(logit - largest).
struct SoftmaxLoss {
  SoftmaxTargets targets;
  void* losses;
  void* state;  ///< num_rows by 2
};

/// out[i, c] = scale factors[i] (softmax(logits[i])[c] - target[i, c]).
struct SoftmaxLossGradient {
  SoftmaxTargets targets;
  const void* state;
  const void* factors;  ///< null = ones
  double scale;
  void* out;
};

/// See SoftmaxLoss. All arrays are of the type of the logits.
/// @pre every label is a class.
void softmax_loss(const SoftmaxLoss& arguments);

/// See SoftmaxLossGradient.
void softmax_loss_gradient(const SoftmaxLossGradient& arguments);

/// Kernels by storage type, for rows [first, last); null where the type is not offered.
struct SoftmaxLossTable {
  void (*loss[kNumStorages])(const SoftmaxLoss&, std::int64_t first, std::int64_t last);
  void (*gradient[kNumStorages])(const SoftmaxLossGradient&, std::int64_t first, std::int64_t last);
};

}  // namespace hpcgnn::kernels
