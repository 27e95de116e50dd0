#include "state/connectivity.h"

#include <bit>

namespace hpcgnn::volpart {
Connectivity::Connectivity(const Hypergraph& graph, int num_parts, std::span<const Part> part)
    : _num_parts(static_cast<std::uint32_t>(num_parts)),
      _narrow_count_bits(16 - std::bit_width(_num_parts - 1)),
      _records(graph.num_nets()) {
  constexpr std::uint64_t kMostInSlot = std::numeric_limits<std::uint16_t>::max();
  std::uint64_t narrow = 0, wide = 0;
  for (Net net = 0; net < graph.num_nets(); ++net) {
    const std::uint64_t size = graph.pins_of(net).size();
    // One slot always stays empty, which ends every search.
    const std::uint64_t capacity = size + size / 4 + 1;
    const bool direct = capacity >= _num_parts;
    const bool is_wide = size > (direct ? kMostInSlot : count_mask<std::uint16_t>());
    std::uint64_t& begin = is_wide ? wide : narrow;
    Record& record = _records[net];
    record.begin = begin & ((std::uint64_t{1} << 45) - 1);
    record.num_parts = 0;
    record.wide = is_wide;
    record.push = graph.net_push[net] != 0;
    record.weight = graph.weight_of(net);
    record.owner_part = part[graph.net_owner[net]];
    record.capacity = static_cast<std::uint16_t>(direct ? 0 : capacity);
    begin += direct ? _num_parts : capacity;
  }
  _narrow.assign(narrow, 0);
  _wide.assign(wide, 0);
  for (Net net = 0; net < graph.num_nets(); ++net)
    for (const Vertex pin : graph.pins_of(net)) add(net, part[pin]);
}

std::uint32_t Connectivity::add(Net net, Part part) {
  Record& record = _records[net];
  return record.wide ? add_in(_wide, record, part) : add_in(_narrow, record, part);
}

std::uint32_t Connectivity::remove(Net net, Part part) {
  Record& record = _records[net];
  return record.wide ? remove_in(_wide, record, part) : remove_in(_narrow, record, part);
}

template <class Slot>
Slot& Connectivity::find(Slot* slots, const Record& record, Part part) const {
  if (record.capacity == 0) return slots[part];
  std::uint32_t slot = home(record, part);
  while (slots[slot] != 0 && slots[slot] >> count_bits<Slot>() != part)
    if (++slot == record.capacity) slot = 0;
  return slots[slot];
}

template <class Slot>
std::uint32_t Connectivity::add_in(std::vector<Slot>& all, Record& record, Part part) {
  Slot& entry = find(all.data() + record.begin, record, part);
  if (entry == 0) {
    ++record.num_parts;
    if (record.capacity != 0) entry = static_cast<Slot>(Slot{part} << count_bits<Slot>());
  }
  ++entry;
  return record.capacity == 0 ? entry : entry & count_mask<Slot>();
}

template <class Slot>
std::uint32_t Connectivity::remove_in(std::vector<Slot>& all, Record& record, Part part) {
  Slot* const slots = all.data() + record.begin;
  Slot& entry = find(slots, record, part);
  --entry;
  const std::uint32_t left = record.capacity == 0 ? entry : entry & count_mask<Slot>();
  if (left == 0) {
    --record.num_parts;
    if (record.capacity != 0) erase(slots, record, static_cast<std::uint32_t>(&entry - slots));
  }
  return left;
}

template <class Slot>
void Connectivity::erase(Slot* slots, const Record& record, std::uint32_t slot) const {
  const std::uint32_t capacity = record.capacity;
  const auto after = [&](std::uint32_t s) { return s + 1 == capacity ? 0 : s + 1; };
  // Move back every entry of the run whose home slot is not between the hole and the entry.
  for (std::uint32_t next = after(slot); slots[next] != 0; next = after(next)) {
    const std::uint32_t wanted = home(record, static_cast<Part>(slots[next] >> count_bits<Slot>()));
    const std::uint32_t distance = (next + capacity - wanted) % capacity;
    if (distance >= (next + capacity - slot) % capacity) {
      slots[slot] = slots[next];
      slot = next;
    }
  }
  slots[slot] = 0;
}

}  // namespace hpcgnn::volpart
