#include "nodes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

namespace hpcgnn::sampling {
namespace {

constexpr int kDigit = 11;
constexpr int kFewest = 64;

/// One pass of a radix sort, by the digit at `shift`.
void sort_digit(const std::vector<std::int32_t>& from, std::vector<std::int32_t>& to, int shift) {
  std::array<std::int64_t, (1 << kDigit) + 1> starts{};
  const auto digit = [shift](std::int32_t v) {
    return static_cast<std::size_t>(v >> shift) & ((1u << kDigit) - 1);
  };
  for (const std::int32_t value : from) ++starts[digit(value) + 1];
  for (std::size_t i = 1; i < starts.size(); ++i) starts[i] += starts[i - 1];
  for (const std::int32_t value : from)
    to[static_cast<std::size_t>(starts[digit(value)]++)] = value;
}

}  // namespace

std::vector<std::int32_t> distinct_nodes(std::vector<std::int32_t> visits) {
  if (visits.size() < kFewest) {
    std::sort(visits.begin(), visits.end());
  } else {
    const std::int32_t largest = *std::max_element(visits.begin(), visits.end());
    std::vector<std::int32_t> other(visits.size());
    for (int shift = 0; shift < 31 && largest >> shift > 0; shift += kDigit) {
      sort_digit(visits, other, shift);
      visits.swap(other);
    }
  }
  visits.erase(std::unique(visits.begin(), visits.end()), visits.end());
  return visits;
}

void clip_nodes(std::vector<std::int32_t>& nodes, std::int64_t multiple, Draws draws) {
  auto count = static_cast<std::int64_t>(nodes.size());
  if (multiple <= 1 || count < multiple) return;
  for (std::int64_t excess = count % multiple; excess > 0; --excess)
    nodes.erase(nodes.begin() + draws.below(count--));
}

NodeIndex::NodeIndex(const std::int32_t* nodes, std::int64_t count) {
  const int bits = std::clamp<int>(std::bit_width(static_cast<std::uint64_t>(count)), 5, 27);
  // At most a sixteenth of the filter's bits and half of the table's slots are set.
  filter_shift_ = 32 - (bits + 4);
  table_shift_ = 32 - (bits + 1);
  table_mask_ = (1u << (bits + 1)) - 1;
  filter_.resize(std::size_t{1} << (bits + 4 - 6));
  table_.resize(std::size_t{1} << (bits + 1));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t key = hash(nodes[i]), bit = key >> filter_shift_;
    filter_[bit / 64] |= std::uint64_t{1} << (bit % 64);
    std::uint32_t slot = key >> table_shift_;
    while (table_[slot].place >= 0) slot = (slot + 1) & table_mask_;
    table_[slot] = {nodes[i], static_cast<std::int32_t>(i)};
  }
}

}  // namespace hpcgnn::sampling
