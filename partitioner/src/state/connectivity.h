/// Pin counts of each net by part, and other facts about a net needed to evaluate a move.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "state/hypergraph.h"

namespace hpcgnn::volpart {

using Part = std::uint16_t;

/// One table for each net. A net with few pins has a hash table with a few slots more than pins; a
/// net with many has a slot for each part. So memory is linear in the pins for any number of parts:
/// at most 5 bytes per pin and 20 bytes per net, half of the first for nets of few pins and parts.
/// All facts about a net that a move needs are in one record: each further array would be another
/// cache miss.
class Connectivity {
 public:
  Connectivity(const Hypergraph& graph, int num_parts, std::span<const Part> part);

  /// Pins of `net` in `part`.
  std::uint32_t count(Net net, Part part) const {
    const Record& record = _records[net];
    return record.wide ? count_in(_wide, record, part) : count_in(_narrow, record, part);
  }
  /// Number of parts that hold pins of `net`.
  std::uint32_t num_parts(Net net) const {
    return static_cast<std::uint32_t>(_records[net].num_parts);
  }
  Part owner_part(Net net) const { return _records[net].owner_part; }
  /// Number of merged identical nets.
  Weight weight(Net net) const { return _records[net].weight; }
  bool is_push(Net net) const { return _records[net].push != 0; }

  /// Prefetch the data of `net` in order of use: its record, then the slots of a part.
  void prefetch_record(Net net) const { __builtin_prefetch(&_records[net]); }
  void prefetch_slot(Net net, Part part) const {
    const Record& record = _records[net];
    const std::uint64_t slot = record.begin + (record.capacity == 0 ? part : home(record, part));
    if (record.wide)
      __builtin_prefetch(_wide.data() + slot);
    else
      __builtin_prefetch(_narrow.data() + slot);
  }

  /// Count one pin more or less; return the new count.
  std::uint32_t add(Net net, Part part);
  std::uint32_t remove(Net net, Part part);
  void move_owner(Net net, Part part) { _records[net].owner_part = part; }

  /// Call visit(part) for every part that holds pins of `net`.
  template <class Visit>
  void for_each_part(Net net, Visit&& visit) const {
    const Record& record = _records[net];
    record.wide ? visit_in(_wide, record, visit) : visit_in(_narrow, record, visit);
  }
  std::size_t memory_bytes() const {
    return _records.size() * sizeof(Record) + _narrow.size() * sizeof(std::uint16_t) +
           _wide.size() * sizeof(std::uint32_t);
  }

 private:
  struct Record {
    std::uint64_t begin : 45;
    std::uint64_t num_parts : 17;
    std::uint64_t wide : 1;  ///< Whether its slots are in _wide, not in _narrow.
    std::uint64_t push : 1;
    std::uint32_t weight;
    Part owner_part;
    std::uint16_t capacity;  ///< Slots of the hash table; 0 means one slot for each part.
  };
  static_assert(sizeof(Record) == 16);

  // A hashed slot packs part and count. In a narrow slot the count has the bits not used by the
  // part number; a net with wide slots has fewer pins than parts, so 16 bits hold each.
  template <class Slot>
  int count_bits() const {
    return sizeof(Slot) == 2 ? _narrow_count_bits : 16;
  }
  template <class Slot>
  std::uint32_t count_mask() const {
    return (1U << count_bits<Slot>()) - 1;
  }

  static std::uint32_t home(const Record& record, Part part) {
    return ((part * 0x9E37u & 0xFFFFu) * record.capacity) >> 16;
  }
  template <class Slot>
  std::uint32_t count_in(const std::vector<Slot>& all, const Record& record, Part part) const {
    const Slot* const slots = all.data() + record.begin;
    if (record.capacity == 0) return slots[part];
    for (std::uint32_t slot = home(record, part);;) {
      const std::uint32_t entry = slots[slot];
      if (entry == 0) return 0;
      if (entry >> count_bits<Slot>() == part) return entry & count_mask<Slot>();
      if (++slot == record.capacity) slot = 0;
    }
  }
  template <class Slot, class Visit>
  void visit_in(const std::vector<Slot>& all, const Record& record, Visit&& visit) const {
    const Slot* const slots = all.data() + record.begin;
    const bool direct = record.capacity == 0;
    const std::uint32_t size = direct ? _num_parts : record.capacity;
    for (std::uint32_t slot = 0; slot < size; ++slot)
      if (slots[slot] != 0)
        visit(static_cast<Part>(direct ? slot : slots[slot] >> count_bits<Slot>()));
  }
  template <class Slot>
  Slot& find(Slot* slots, const Record& record, Part part) const;
  template <class Slot>
  std::uint32_t add_in(std::vector<Slot>& all, Record& record, Part part);
  template <class Slot>
  std::uint32_t remove_in(std::vector<Slot>& all, Record& record, Part part);
  template <class Slot>
  void erase(Slot* slots, const Record& record, std::uint32_t slot) const;

  std::uint32_t _num_parts;
  int _narrow_count_bits;
  std::vector<Record> _records;
  std::vector<std::uint16_t> _narrow;
  std::vector<std::uint32_t> _wide;  ///< Slots of nets with too many pins for narrow ones.
};

}  // namespace hpcgnn::volpart
