/// Vectors of numbers, packed into as few bits each as the largest needs.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

namespace hpcgnn::volpart {

/// Numbers below a limit, each in the same number of bits: random access works, and lists of
/// millions of vertices take 2 to 3 bytes per entry. The memory is owned or borrowed.
class Packed {
 public:
  /// Bytes after the last number that are read with it.
  static constexpr std::size_t kSlack = 8;

  Packed() = default;
  explicit Packed(std::uint64_t limit) : _bits(bits_of(limit)) {}
  Packed(std::uint64_t limit, std::size_t size) : Packed(limit) {
    _size = size;
    _own.resize(bytes_of(limit, size));
    _bytes = _own.data();
  }
  /// @param[in] bytes bytes_of(limit, size) bytes, which outlive this object and are written to.
  static Packed over(std::uint8_t* bytes, std::uint64_t limit, std::size_t size) {
    Packed packed(limit);
    packed._bytes = bytes;
    packed._size = size;
    return packed;
  }
  /// A view of the same numbers in the memory of this object, which must outlive it.
  Packed borrowed() {
    Packed packed;
    packed._bits = _bits;
    packed._bytes = _bytes;
    packed._size = _size;
    return packed;
  }
  Packed(Packed&& other) noexcept { *this = std::move(other); }
  Packed& operator=(Packed&& other) noexcept {
    _bits = other._bits;
    _size = std::exchange(other._size, 0);
    _own = std::move(other._own);
    _bytes = std::exchange(other._bytes, nullptr);
    return *this;
  }

  static std::size_t bytes_of(std::uint64_t limit, std::size_t size) {
    return (size * static_cast<std::size_t>(bits_of(limit)) + 7) / 8 + kSlack;
  }

  std::size_t size() const { return _size; }
  std::uint32_t operator[](std::size_t index) const {
    const std::size_t bit = index * static_cast<std::size_t>(_bits);
    return static_cast<std::uint32_t>(load(bit >> 3) >> (bit & 7) & mask());
  }
  void set(std::size_t index, std::uint32_t value) {
    const std::size_t bit = index * static_cast<std::size_t>(_bits);
    std::uint64_t word = load(bit >> 3);
    word &= ~(mask() << (bit & 7));
    word |= std::uint64_t{value} << (bit & 7);
    std::memcpy(_bytes + (bit >> 3), &word, sizeof word);
  }
  /// Reserve space for `size` numbers; unused space takes no physical memory.
  void reserve(std::size_t size) {
    _own.reserve((size * static_cast<std::size_t>(_bits) + 7) / 8 + 2 * kStep);
    _bytes = _own.data();
  }
  void push_back(std::uint32_t value) {
    if (((_size + 1) * static_cast<std::size_t>(_bits) + 7) / 8 + kSlack > _own.size()) {
      if (_own.size() + kStep > _own.capacity()) _own.reserve(2 * _own.size() + kStep);
      _own.resize(_own.size() + kStep);
      _bytes = _own.data();
    }
    set(_size++, value);
  }

  class Iterator {
   public:
    using iterator_category = std::random_access_iterator_tag;
    using value_type = std::uint32_t;
    using difference_type = std::ptrdiff_t;
    using pointer = void;
    using reference = std::uint32_t;

    Iterator() = default;
    Iterator(const Packed* packed, std::size_t index) : _packed(packed), _index(index) {}
    std::uint32_t operator*() const { return (*_packed)[_index]; }
    Iterator& operator++() {
      ++_index;
      return *this;
    }
    Iterator operator++(int) { return {_packed, _index++}; }
    bool operator==(const Iterator& other) const { return _index == other._index; }

   private:
    const Packed* _packed = nullptr;
    std::size_t _index = 0;
  };

  /// A range of consecutive numbers.
  class List {
   public:
    List(const Packed* packed, std::size_t first, std::size_t last)
        : _packed(packed), _first(first), _last(last) {}
    std::size_t size() const { return _last - _first; }
    bool empty() const { return _first == _last; }
    std::uint32_t operator[](std::size_t index) const { return (*_packed)[_first + index]; }
    Iterator begin() const { return {_packed, _first}; }
    Iterator end() const { return {_packed, _last}; }

   private:
    const Packed* _packed;
    std::size_t _first, _last;
  };

  List list(std::size_t first, std::size_t last) const { return {this, first, last}; }

 private:
  static constexpr std::size_t kStep = 4096;

  static int bits_of(std::uint64_t limit) {
    return std::max(1, static_cast<int>(std::bit_width(limit - (limit > 0 ? 1 : 0))));
  }
  std::uint64_t mask() const { return (std::uint64_t{1} << _bits) - 1; }
  std::uint64_t load(std::size_t byte) const {
    std::uint64_t word;
    std::memcpy(&word, _bytes + byte, sizeof word);
    return word;
  }

  int _bits = 1;
  std::size_t _size = 0;
  std::uint8_t* _bytes = nullptr;
  std::vector<std::uint8_t> _own;
};

}  // namespace hpcgnn::volpart
