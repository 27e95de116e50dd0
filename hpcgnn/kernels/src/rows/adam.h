/// A step of Adam (Kingma and Ba, ICLR 2015) in two passes over weights, with a root between them.
///
/// The root is left to the library whose bits are wanted: those of vector libraries are not
/// correctly rounded.
#pragma once

#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

/// Weights, their gradient, and the running means of it and of its square; `count` numbers each.
struct AdamWeights {
  void* weights;
  const void* gradient;
  void* mean;
  void* square;
  std::int64_t count;
  Storage storage;  ///< float32 or float64, of all four
};

/// Means become `mean + mean_share (g - mean)`, squares `square_rest square + square_share g²`,
/// with `g = gradient + decay weight`, and weights `shrink weight`.
struct AdamMeans {
  double shrink, decay, mean_share, square_rest, square_share;
};

/// Weights become `weight + length mean / (root / root_of_share + eps)`.
struct AdamLength {
  double length, root_of_share, eps;
};

/// Kernels by storage type, for numbers [first, last) of the weights.
struct AdamTable {
  void (*means[kNumStorages])(const AdamWeights&, const AdamMeans&, void* squares,
                              std::int64_t first, std::int64_t last);
  bool (*weights[kNumStorages])(const AdamWeights&, const AdamLength&, const void* roots,
                                std::int64_t first, std::int64_t last);
};

/// Shrink weights and update running means, and write the squares to an array, too. As for
/// `adam_weights`, the bits of a number depend on nothing else.
void adam_means(const AdamWeights& weights, const AdamMeans& means, void* squares, int num_threads,
                Isa isa);

/// Update weights, given the roots of the squares; returns whether all are finite.
bool adam_weights(const AdamWeights& weights, const AdamLength& length, const void* roots,
                  int num_threads, Isa isa);

}  // namespace hpcgnn::kernels
