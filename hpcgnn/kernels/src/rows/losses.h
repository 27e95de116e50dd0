/// The cross entropies of softmaxes, a row each, and of sigmoids, an element each, with their
/// gradients. None keeps a matrix; all arrays are of the type of the logits.
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

/// Rows that sigmoids are taken of, and what these should be, in [0, 1].
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
};

/// out[i, c] = scale factors[i] (sigmoid(logits[i, c]) - targets[i, c]).
struct SigmoidLossGradient {
  SigmoidTargets targets;
  const void* factors;  ///< null = ones
  double scale;
  void* out;
};

/// @pre every label is a class.
void softmax_loss(const SoftmaxLoss& arguments);
void softmax_loss_gradient(const SoftmaxLossGradient& arguments);
void sigmoid_loss(const SigmoidLoss& arguments);
void sigmoid_loss_gradient(const SigmoidLossGradient& arguments);

/// Kernels by storage type, for rows [first, last); null where the type is not offered.
template <class Loss, class Gradient>
struct LossTable {
  void (*loss[kNumStorages])(const Loss&, std::int64_t first, std::int64_t last);
  void (*gradient[kNumStorages])(const Gradient&, std::int64_t first, std::int64_t last);
};

using SoftmaxLossTable = LossTable<SoftmaxLoss, SoftmaxLossGradient>;
using SigmoidLossTable = LossTable<SigmoidLoss, SigmoidLossGradient>;

}  // namespace hpcgnn::kernels
