/// The cross entropy of sigmoids, one for each element, and its gradient; a pass over the logits
/// each, and no matrix is kept.
#pragma once

#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

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

/// See SigmoidLoss. All arrays are of the type of the logits.
void sigmoid_loss(const SigmoidLoss& arguments);

/// See SigmoidLossGradient.
void sigmoid_loss_gradient(const SigmoidLossGradient& arguments);

/// Kernels by storage type, for rows [first, last); null where the type is not offered.
struct SigmoidLossTable {
  void (*loss[kNumStorages])(const SigmoidLoss&, std::int64_t first, std::int64_t last);
  void (*gradient[kNumStorages])(const SigmoidLossGradient&, std::int64_t first, std::int64_t last);
};

}  // namespace hpcgnn::kernels
