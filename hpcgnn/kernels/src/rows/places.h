/// The numbers of a register's lanes.
#pragma once

namespace hpcgnn::kernels {

template <class V>
struct alignas(64) Places {
  typename V::Scalar at[V::kLanes];
  constexpr Places() : at() {
    for (int lane = 0; lane < V::kLanes; ++lane) at[lane] = static_cast<typename V::Scalar>(lane);
  }
};

/// 0, 1, 2, ...: compared with a count, they choose the first lanes.
template <class V>
inline constexpr Places<V> kPlaces{};

}  // namespace hpcgnn::kernels
