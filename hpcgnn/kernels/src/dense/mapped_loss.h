/// Losses of mapped rows, x W^T + b, and their gradients.
///
/// With many classes, logits and their gradient are the largest arrays of a narrow model. Here they
/// are never whole: a block of rows goes through all steps while it is in cache.
#pragma once

#include "rows/losses.h"
#include "types.h"

namespace hpcgnn::kernels {

struct LogitMap {
  const void* rows;    ///< num_rows by inner
  const void* weight;  ///< width by inner, accumulator type
  const void* bias;    ///< (width,) like the weight; null = none
  std::int64_t num_rows, inner, width;
  Storage storage;  ///< of the rows
  int num_threads;
  Isa isa;
};

/// Where to write the gradients of a map, which are like its operands.
struct LogitMapGradients {
  void* rows;  ///< null = not wanted
  void* weight;
  void* bias;  ///< null = none
};

/// Write `loss.losses` and the gradients. The loss has the accumulator type of the rows; its logits
/// and where their gradient goes are not read.
void mapped_loss(const LogitMap& map, const SoftmaxLoss& loss, const LogitMapGradients& gradients);
void mapped_loss(const LogitMap& map, const SigmoidLoss& loss, const LogitMapGradients& gradients);

}  // namespace hpcgnn::kernels
