/// The storage types of kernels, with the vector types that compute them.
#pragma once

#include <cstdint>

#include "simd/half.h"
#include "types.h"

namespace hpcgnn::kernels {

/// Calls set.operator()<V, X>(storage) for rows of each type.
template <class F32, class F64, class Set>
constexpr void for_storages(const Set& set) {
  using enum Storage;
  set.template operator()<F32, float>(kFloat32);
  set.template operator()<F64, double>(kFloat64);
  set.template operator()<F32, BFloat16>(kBFloat16);
  set.template operator()<F32, Float16>(kFloat16);
}

/// Calls set.operator()<V, S, Out>(source, out) for each pair of types of rows and of results.
template <class F32, class F64, class Set>
constexpr void for_storage_pairs(const Set& set) {
  using enum Storage;
  set.template operator()<F32, float, float>(kFloat32, kFloat32);
  set.template operator()<F32, float, BFloat16>(kFloat32, kBFloat16);
  set.template operator()<F32, float, Float16>(kFloat32, kFloat16);
  set.template operator()<F64, double, double>(kFloat64, kFloat64);
  set.template operator()<F64, std::int32_t, double>(kInt32, kFloat64);
  set.template operator()<F32, BFloat16, float>(kBFloat16, kFloat32);
  set.template operator()<F32, BFloat16, BFloat16>(kBFloat16, kBFloat16);
  set.template operator()<F32, Float16, float>(kFloat16, kFloat32);
  set.template operator()<F32, Float16, Float16>(kFloat16, kFloat16);
}

}  // namespace hpcgnn::kernels
