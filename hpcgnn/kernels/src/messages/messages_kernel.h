/// Passes of networks on edges, templates over the SIMD types; included once per instruction set.
#pragma once

#include <cmath>

#include "messages/messages.h"
#include "simd/exponential.h"

namespace hpcgnn::kernels {

template <class V, class S>
struct MessageKernels {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;
  static constexpr std::int64_t kAhead = 4;

  /// Call `use(c, load, store)` for each register of a row, which starts at column c.
  template <class Use>
  HPCGNN_INLINE static void each(std::int64_t width, const Use& use) {
    std::int64_t c = 0;
    for (; c + V::kLanes <= width; c += V::kLanes)
      use(c, [](const auto* p) { return V::load(p); }, [](auto* p, Reg r) { V::store(p, r); });
    if (c == width) return;
    const auto tail = V::mask(static_cast<int>(width - c));
    use(
        c, [tail](const auto* p) { return V::load(p, tail); },
        [tail](auto* p, Reg r) { V::store(p, r, tail); });
  }

  HPCGNN_INLINE static const S* row(const void* base, std::int64_t i, std::int64_t width) {
    return static_cast<const S*>(base) + i * width;
  }
  HPCGNN_INLINE static S* row(void* base, std::int64_t i, std::int64_t width) {
    return static_cast<S*>(base) + i * width;
  }

  HPCGNN_INLINE static Reg activate(Activation activation, Reg x) {
    // In this order of arguments NaN stays NaN.
    if (activation == Activation::kRelu) return V::max(V::zero(), x);
    if (activation == Activation::kElu) {
      const Reg below = V::sub(exponential<V>(V::min(V::zero(), x)), V::broadcast(Scalar(1)));
      return V::choose_less(V::zero(), x, x, below);
    }
    return x;
  }

  /// The gradient of the argument, from the result.
  HPCGNN_INLINE static Reg derive(Activation activation, Reg gradient, Reg result) {
    if (activation == Activation::kRelu)
      return V::choose_less(V::zero(), result, gradient, V::zero());
    if (activation == Activation::kElu)
      return V::choose_less(V::zero(), result, gradient, V::fma(gradient, result, gradient));
    return gradient;
  }

  HPCGNN_INLINE static void prefetch(const S* p, std::int64_t width) {
    for (std::int64_t c = 0; c < width; c += static_cast<std::int64_t>(64 / sizeof(S)))
      __builtin_prefetch(p + c);
  }

  [[gnu::flatten]] static void combine(const CombineArguments& a, std::int64_t first,
                                       std::int64_t last) {
    const Scalar* const bias = static_cast<const Scalar*>(a.bias);
    for (std::int64_t i = first; i < last; ++i) {
      const S* const source = row(a.rows, i, a.width);
      const S* const mine = a.targets ? row(a.targets, a.target_ids[i], a.width) : nullptr;
      const S* const other = a.sources ? row(a.sources, a.source_ids[i], a.width) : nullptr;
      if (other && i + kAhead < last)
        prefetch(row(a.sources, a.source_ids[i + kAhead], a.width), a.width);
      S* const out = row(a.out, i, a.width);
      each(a.width, [&](std::int64_t c, auto load, auto store) {
        Reg value = load(source + c);
        if (mine) value = V::add(value, load(mine + c));
        if (other) value = V::add(value, load(other + c));
        if (bias) value = V::add(value, load(bias + c));
        store(out + c, activate(a.activation, value));
      });
    }
  }

  [[gnu::flatten]] static void combine_gradient(const CombineGradient& a, std::int64_t first,
                                                std::int64_t last, bool scatters, void* sums) {
    Scalar* const of_bias = static_cast<Scalar*>(sums);
    Scalar* const of_targets = scatters ? static_cast<Scalar*>(a.of_targets) : nullptr;
    Scalar* const of_sources = scatters ? static_cast<Scalar*>(a.of_sources) : nullptr;
    for (std::int64_t i = first; i < last; ++i) {
      const S* const gradient = row(a.gradient, i, a.width);
      const S* const result = a.result ? row(a.result, i, a.width) : nullptr;
      S* const out = row(a.out, i, a.width);
      Scalar* const mine = of_targets ? of_targets + a.target_ids[i] * a.width : nullptr;
      Scalar* const other = of_sources ? of_sources + a.source_ids[i] * a.width : nullptr;
      if (other && i + kAhead < last) {
        const Scalar* const next = of_sources + a.source_ids[i + kAhead] * a.width;
        for (std::int64_t c = 0; c < a.width; c += static_cast<std::int64_t>(64 / sizeof(Scalar)))
          __builtin_prefetch(next + c, 1);
      }
      each(a.width, [&](std::int64_t c, auto load, auto store) {
        Reg value = load(gradient + c);
        if (result) value = derive(a.activation, value, load(result + c));
        store(out + c, value);
        // Sums are those of the stored, rounded numbers, here and in other kernels.
        if constexpr (sizeof(S) < sizeof(Scalar)) value = load(out + c);
        if (mine) store(mine + c, V::add(load(mine + c), value));
        if (other) store(other + c, V::add(load(other + c), value));
        if (of_bias) store(of_bias + c, V::add(load(of_bias + c), value));
      });
    }
  }

  struct Moments {
    Scalar mean, inverse;
  };

  /// The moments of a row plus bias.
  HPCGNN_INLINE static Moments moments(const NormArguments& a, const S* source) {
    const Scalar* const bias = static_cast<const Scalar*>(a.bias);
    Reg sum = V::zero();
    each(a.width, [&](std::int64_t c, auto load, auto) {
      Reg value = load(source + c);
      if (bias) value = V::add(value, load(bias + c));
      sum = V::add(sum, value);
    });
    const Scalar count = static_cast<Scalar>(a.width), mean = V::sum(sum) / count;
    const Reg middle = V::broadcast(mean);
    Reg squares = V::zero();
    std::int64_t c = 0;
    for (; c + V::kLanes <= a.width; c += V::kLanes) {
      Reg value = V::load(source + c);
      if (bias) value = V::add(value, V::load(bias + c));
      const Reg away = V::sub(value, middle);
      squares = V::fma(away, away, squares);
    }
    Scalar total = V::sum(squares);
    // One by one, as lanes past the end are not part of the row.
    Scalar rest[V::kLanes];
    if (c < a.width) {
      const auto tail = V::mask(static_cast<int>(a.width - c));
      Reg value = V::load(source + c, tail);
      if (bias) value = V::add(value, V::load(bias + c, tail));
      V::store(rest, V::sub(value, middle));
      for (std::int64_t lane = 0; lane < a.width - c; ++lane) total += rest[lane] * rest[lane];
    }
    return {mean, 1 / std::sqrt(total / count + static_cast<Scalar>(a.eps))};
  }

  [[gnu::flatten]] static void norm(const NormArguments& a, std::int64_t first, std::int64_t last) {
    const Scalar* const bias = static_cast<const Scalar*>(a.bias);
    const Scalar* const scale = static_cast<const Scalar*>(a.scale);
    const Scalar* const shift = static_cast<const Scalar*>(a.shift);
    for (std::int64_t i = first; i < last; ++i) {
      const S* const source = row(a.rows, i, a.width);
      const S* const residual = a.residual ? row(a.residual, i, a.width) : nullptr;
      S* const out = row(a.out, i, a.width);
      const Moments found = scale ? moments(a, source) : Moments{0, 1};
      const Reg mean = V::broadcast(found.mean), inverse = V::broadcast(found.inverse);
      each(a.width, [&](std::int64_t c, auto load, auto store) {
        Reg value = load(source + c);
        if (bias) value = V::add(value, load(bias + c));
        if (scale)
          value = V::fma(V::mul(V::sub(value, mean), inverse), load(scale + c), load(shift + c));
        if (residual) value = V::add(load(residual + c), value);
        store(out + c, value);
      });
    }
  }

  [[gnu::flatten]] static void norm_gradient(const NormGradient& a, std::int64_t first,
                                             std::int64_t last, void* sums) {
    const std::int64_t width = a.norm.width;
    const Scalar* const bias = static_cast<const Scalar*>(a.norm.bias);
    const Scalar* const scale = static_cast<const Scalar*>(a.norm.scale);
    Scalar* const of_bias = static_cast<Scalar*>(sums);
    Scalar* const of_scale = sums ? of_bias + width : nullptr;
    Scalar* const of_shift = sums ? of_scale + width : nullptr;
    for (std::int64_t i = first; i < last; ++i) {
      const S* const source = row(a.norm.rows, i, width);
      const S* const gradient = row(a.gradient, i, width);
      S* const out = row(a.out, i, width);
      if (!scale) {
        each(width, [&](std::int64_t c, auto load, auto store) {
          const Reg value = load(gradient + c);
          store(out + c, value);
          if (of_bias) store(of_bias + c, V::add(load(of_bias + c), value));
        });
        continue;
      }
      const Moments found = moments(a.norm, source);
      const Reg middle = V::broadcast(found.mean), inverse = V::broadcast(found.inverse);
      const auto normed = [&](std::int64_t c, auto load) {
        Reg value = load(source + c);
        if (bias) value = V::add(value, load(bias + c));
        return V::mul(V::sub(value, middle), inverse);
      };
      Reg sum = V::zero(), products = V::zero();
      each(width, [&](std::int64_t c, auto load, auto store) {
        const Reg upper = load(gradient + c), y = normed(c, load);
        // Lanes past the end have no gradient.
        const Reg scaled = V::mul(upper, load(scale + c));
        sum = V::add(sum, scaled);
        products = V::fma(scaled, y, products);
        if (!of_bias) return;
        store(of_scale + c, V::fma(upper, y, load(of_scale + c)));
        store(of_shift + c, V::add(load(of_shift + c), upper));
      });
      const Scalar count = static_cast<Scalar>(width);
      const Reg first_mean = V::broadcast(V::sum(sum) / count);
      const Reg second_mean = V::broadcast(-V::sum(products) / count);
      each(width, [&](std::int64_t c, auto load, auto store) {
        const Reg scaled = V::mul(load(gradient + c), load(scale + c));
        const Reg away = V::fma(normed(c, load), second_mean, V::sub(scaled, first_mean));
        Reg value = V::mul(away, inverse);
        store(out + c, value);
        if constexpr (sizeof(S) < sizeof(Scalar)) value = load(out + c);
        if (of_bias) store(of_bias + c, V::add(load(of_bias + c), value));
      });
    }
  }
};

template <class F32, class F64>
constexpr MessagesTable make_table() {
  MessagesTable table{};
  const auto set = [&]<class V, class S>(Storage storage) {
    const int place = static_cast<int>(storage);
    table.combine[place] = MessageKernels<V, S>::combine;
    table.combine_gradient[place] = MessageKernels<V, S>::combine_gradient;
    table.norm[place] = MessageKernels<V, S>::norm;
    table.norm_gradient[place] = MessageKernels<V, S>::norm_gradient;
  };
  using enum Storage;
  set.template operator()<F32, float>(kFloat32);
  set.template operator()<F64, double>(kFloat64);
  set.template operator()<F32, BFloat16>(kBFloat16);
  return table;
}

}  // namespace hpcgnn::kernels
