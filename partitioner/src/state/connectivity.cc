#include "state/connectivity.h"

namespace hpcgnn::volpart {

Connectivity::Connectivity(const Hypergraph& graph, int num_parts, std::span<const Part> part)
    : _num_parts(static_cast<std::uint32_t>(num_parts)), _records(graph.num_nets()) {
  Offset begin = 0;
  for (Net net = 0; net < graph.num_nets(); ++net) {
    const Offset size = graph.pins_of(net).size();
    // One slot always stays empty, which ends every search.
    const Offset capacity = size + size / 4 + 1;
    const bool direct = capacity >= _num_parts;
    _records[net] = {static_cast<std::uint32_t>(begin), static_cast<std::uint16_t>(begin >> 32),
                     static_cast<std::uint16_t>(direct ? 0 : capacity), 0};
    begin += direct ? _num_parts : capacity;
  }
  _slots.assign(begin, 0);
  for (Net net = 0; net < graph.num_nets(); ++net)
    for (const Vertex pin : graph.pins_of(net)) add(net, part[pin]);
}

std::uint32_t& Connectivity::find(const Record& record, Part part) {
  std::uint32_t* const slots = _slots.data() + record.begin();
  if (record.capacity == 0) return slots[part];
  std::uint32_t slot = home(record, part);
  while (slots[slot] != 0 && slots[slot] >> kCountBits != part)
    if (++slot == record.capacity) slot = 0;
  return slots[slot];
}

std::uint32_t Connectivity::add(Net net, Part part) {
  Record& record = _records[net];
  std::uint32_t& entry = find(record, part);
  if (entry == 0) {
    ++record.num_parts;
    if (record.capacity != 0) entry = static_cast<std::uint32_t>(part) << kCountBits;
  }
  ++entry;
  return record.capacity == 0 ? entry : entry & kCountMask;
}

std::uint32_t Connectivity::remove(Net net, Part part) {
  Record& record = _records[net];
  std::uint32_t& entry = find(record, part);
  --entry;
  const std::uint32_t left = record.capacity == 0 ? entry : entry & kCountMask;
  if (left == 0) {
    --record.num_parts;
    if (record.capacity != 0)
      erase(record, static_cast<std::uint32_t>(&entry - (_slots.data() + record.begin())));
  }
  return left;
}

void Connectivity::erase(const Record& record, std::uint32_t slot) {
  std::uint32_t* const slots = _slots.data() + record.begin();
  const std::uint32_t capacity = record.capacity;
  const auto after = [&](std::uint32_t s) { return s + 1 == capacity ? 0 : s + 1; };
  // Pull back every entry of the run whose home does not lie between the hole and itself.
  for (std::uint32_t next = after(slot); slots[next] != 0; next = after(next)) {
    const std::uint32_t wanted = home(record, static_cast<Part>(slots[next] >> kCountBits));
    const std::uint32_t distance = (next + capacity - wanted) % capacity;
    if (distance >= (next + capacity - slot) % capacity) {
      slots[slot] = slots[next];
      slot = next;
    }
  }
  slots[slot] = 0;
}

}  // namespace hpcgnn::volpart
