/// The random numbers of one subgraph: a function of seed, subgraph number and position.
#pragma once

#include <cstdint>

#include "random_bits.h"

namespace hpcgnn::sampling {

class Draws {
 public:
  Draws(std::uint64_t seed, std::int64_t number) : state_(kernels::row_stream(seed, number)) {}

  /// The numbers of one item of the subgraph, which do not depend on draws of other items.
  Draws of(std::int64_t item) const { return {state_, item}; }

  /// 64 random bits.
  std::uint64_t next() {
    state_ += kernels::kGolden;
    return kernels::mix_bits(state_);
  }

  /// A number in [0, limit), uniform to within 2^-64 times limit.
  std::int64_t below(std::int64_t limit) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(next()) * static_cast<std::uint64_t>(limit);
    return static_cast<std::int64_t>(product >> 64);
  }

 private:
  std::uint64_t state_;
};

}  // namespace hpcgnn::sampling
