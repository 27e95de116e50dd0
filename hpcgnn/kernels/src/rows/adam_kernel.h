/// The passes of a step of Adam, templates over the SIMD types; included once per instruction set.
#pragma once

#include "rows/adam.h"
#include "simd/storages.h"

namespace hpcgnn::kernels {

/// Products and sums are fused where those of torch are, so that bits are the same.
template <class V>
struct AdamKernels {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;

  /// The vectors of [first, last), of which the last may be a part.
  struct Lanes {
    std::int64_t i;
    bool whole;
    typename V::Mask tail;

    Lanes(std::int64_t at, std::int64_t last)
        : i(at),
          whole(at + V::kLanes <= last),
          tail(V::mask(whole ? V::kLanes : static_cast<int>(last - at))) {}

    HPCGNN_INLINE Reg load(const void* from) const {
      const Scalar* const at = static_cast<const Scalar*>(from) + i;
      return whole ? V::load(at) : V::load(at, tail);
    }
    HPCGNN_INLINE void store(void* to, Reg value) const {
      Scalar* const at = static_cast<Scalar*>(to) + i;
      if (whole)
        V::store(at, value);
      else
        V::store(at, value, tail);
    }
  };

  HPCGNN_INLINE static Reg all(double value) { return V::broadcast(static_cast<Scalar>(value)); }

  static void means(const AdamWeights& a, const AdamMeans& f, void* squares, std::int64_t first,
                    std::int64_t last) {
    const Reg shrink = all(f.shrink), decay = all(f.decay), share = all(f.mean_share),
              rest = all(f.square_rest), square_share = all(f.square_share);
    for (std::int64_t i = first; i < last; i += V::kLanes) {
      const Lanes at(i, last);
      Reg gradient = at.load(a.gradient);
      if (f.decay != 0) gradient = V::fma(at.load(a.weights), decay, gradient);
      // Rounded here: where it is added to, a compiler would fuse product and sum.
      if (f.shrink != 1) at.store(a.weights, V::mul(at.load(a.weights), shrink));
      const Reg mean = at.load(a.mean);
      at.store(a.mean, V::fma(share, V::sub(gradient, mean), mean));
      const Reg square =
          V::fma(V::mul(square_share, gradient), gradient, V::mul(at.load(a.square), rest));
      at.store(a.square, square);
      at.store(squares, square);
    }
  }

  static bool weights(const AdamWeights& a, const AdamLength& f, const void* roots,
                      std::int64_t first, std::int64_t last) {
    const Reg length = all(f.length), share = all(f.root_of_share), eps = all(f.eps);
    // Stays zero while all weights are finite.
    Reg wrong = V::zero();
    for (std::int64_t i = first; i < last; i += V::kLanes) {
      const Lanes at(i, last);
      // Lanes behind the end are 0 / eps.
      const Reg scale = V::add(at.load(roots) / share, eps);
      const Reg step = V::mul(length, at.load(a.mean)) / scale;
      const Reg weight = V::add(at.load(a.weights), step);
      wrong = V::add(wrong, V::sub(weight, weight));
      at.store(a.weights, weight);
    }
    return V::sum(wrong) == 0;
  }
};

template <class F32, class F64>
constexpr AdamTable make_adam_table() {
  AdamTable table{};
  const auto set = [&]<class V>(Storage storage) {
    table.means[static_cast<int>(storage)] = AdamKernels<V>::means;
    table.weights[static_cast<int>(storage)] = AdamKernels<V>::weights;
  };
  set.template operator()<F32>(Storage::kFloat32);
  set.template operator()<F64>(Storage::kFloat64);
  return table;
}

}  // namespace hpcgnn::kernels
