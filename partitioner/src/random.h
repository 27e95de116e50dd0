/// Reproducible random numbers, the same on every platform and standard library.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace hpcgnn::volpart {

/// SplitMix64: a counter put through a mixing function, so that streams of any two seeds differ.
class Random {
 public:
  explicit Random(std::uint64_t seed) : _state(seed) {}

  std::uint64_t bits() {
    std::uint64_t z = _state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// A number in [0, limit); limit is at least 1 and below 2^32.
  std::uint32_t below(std::uint64_t limit) {
    return static_cast<std::uint32_t>(((bits() >> 32) * limit) >> 32);
  }
  /// A number in [0, 1).
  double unit() { return static_cast<double>(bits() >> 11) * 0x1.0p-53; }

  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t left = items.size(); left > 1; --left)
      std::swap(items[left - 1], items[below(left)]);
  }
  /// An independent stream.
  Random fork() { return Random(bits()); }

 private:
  std::uint64_t _state;
};

}  // namespace hpcgnn::volpart
