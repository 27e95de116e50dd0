/// How many pins of each net lie in each part.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "state/hypergraph.h"

namespace hpcgnn::volpart {

using Part = std::uint16_t;

/// One table for each net. A net with few pins has a hash table with a few slots more than pins; a
/// net with many has a slot for each part. So memory is linear in the pins whatever the number of
/// parts: at most 5 bytes a pin and 16 bytes a net.
class Connectivity {
 public:
  Connectivity(const Hypergraph& graph, int num_parts, std::span<const Part> part);

  /// Pins of `net` in `part`.
  std::uint32_t count(Net net, Part part) const {
    const Record& record = _records[net];
    const std::uint32_t* slots = _slots.data() + record.begin();
    if (record.capacity == 0) return slots[part];
    for (std::uint32_t slot = home(record, part);;) {
      const std::uint32_t entry = slots[slot];
      if (entry == 0) return 0;
      if (entry >> kCountBits == part) return entry & kCountMask;
      if (++slot == record.capacity) slot = 0;
    }
  }
  /// Number of parts that hold pins of `net`.
  std::uint32_t num_parts(Net net) const { return _records[net].num_parts; }

  /// Count one pin more or less; return the new count.
  std::uint32_t add(Net net, Part part);
  std::uint32_t remove(Net net, Part part);

  /// Call visit(part) for every part that holds pins of `net`.
  template <class Visit>
  void for_each_part(Net net, Visit&& visit) const {
    const Record& record = _records[net];
    const std::uint32_t* slots = _slots.data() + record.begin();
    const bool direct = record.capacity == 0;
    const std::uint32_t size = direct ? _num_parts : record.capacity;
    for (std::uint32_t slot = 0; slot < size; ++slot)
      if (slots[slot] != 0) visit(static_cast<Part>(direct ? slot : slots[slot] >> kCountBits));
  }
  std::size_t memory_bytes() const {
    return _records.size() * sizeof(Record) + _slots.size() * sizeof(std::uint32_t);
  }

 private:
  // A hashed slot packs part and count. Its net has fewer pins than parts, so 16 bits hold both.
  static constexpr int kCountBits = 16;
  static constexpr std::uint32_t kCountMask = 0xFFFF;

  struct Record {
    Offset begin() const { return Offset{begin_high} << 32 | begin_low; }

    // Split, so that a record takes 12 bytes.
    std::uint32_t begin_low;
    std::uint16_t begin_high;
    std::uint16_t capacity;  ///< Slots of the hash table; 0 means one slot for each part.
    std::uint32_t num_parts;
  };

  static std::uint32_t home(const Record& record, Part part) {
    return ((part * 0x9E37u & 0xFFFFu) * record.capacity) >> 16;
  }
  std::uint32_t& find(const Record& record, Part part);
  void erase(const Record& record, std::uint32_t slot);

  std::uint32_t _num_parts;
  std::vector<Record> _records;
  std::vector<std::uint32_t> _slots;
};

}  // namespace hpcgnn::volpart
