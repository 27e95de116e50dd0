/// Sets of numbers below a limit, as bit sets.
#pragma once

#include <bit>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace hpcgnn::kernels {

/// Numbers in [0, limit), and the rank of each among them, in a quarter of a byte for each number
/// below the limit: look-ups stay in the caches where a table would not.
class NumberSet {
 public:
  explicit NumberSet(std::int64_t limit)
      : _limit(limit), _words(static_cast<std::size_t>(limit / 64 + 1)) {}

  /// @throws std::invalid_argument unless all values are in [0, limit).
  template <class T>
  void insert(const T* values, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<std::int64_t>(values[i]);
      if (value < 0 || value >= _limit) throw std::invalid_argument("a number is out of range");
      word(value).bits |= mask(value);
    }
  }

  /// Count the numbers before each word; must be called before the functions below.
  void close() {
    for (Word& word : _words) {
      word.before = _size;
      _size += std::popcount(word.bits);
    }
  }

  std::int64_t size() const { return _size; }

  /// Write the numbers in ascending order.
  template <class T>
  void list(T* out) const {
    for (std::size_t w = 0; w < _words.size(); ++w)
      for (std::uint64_t bits = _words[w].bits; bits != 0; bits &= bits - 1)
        *out++ = static_cast<T>(64 * w + static_cast<std::size_t>(std::countr_zero(bits)));
  }

  /// Number of elements of the set that are smaller than `value`, which is one of them.
  /// @throws std::invalid_argument if it is not.
  std::int64_t position(std::int64_t value) const {
    if (value < 0 || value >= _limit || (word(value).bits & mask(value)) == 0)
      throw std::invalid_argument("a number is not among the names");
    return word(value).before + std::popcount(word(value).bits & (mask(value) - 1));
  }

 private:
  struct Word {
    std::uint64_t bits = 0;
    std::int64_t before = 0;
  };

  static std::uint64_t mask(std::int64_t value) { return std::uint64_t{1} << (value % 64); }
  Word& word(std::int64_t value) { return _words[static_cast<std::size_t>(value / 64)]; }
  const Word& word(std::int64_t value) const {
    return _words[static_cast<std::size_t>(value / 64)];
  }

  std::int64_t _limit;
  std::int64_t _size = 0;
  std::vector<Word> _words;
};

}  // namespace hpcgnn::kernels
