#include "dashboard.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace hpcgnn::sampling {
namespace {

constexpr std::int32_t kHubs = 0;  // the tile that the hubs share
constexpr std::int64_t kMostUnits = std::numeric_limits<std::int32_t>::max();

int log2_ceil(std::int64_t n) {
  return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n - 1)));
}

}  // namespace

Dashboard::Dashboard(std::int64_t num_walkers, double mean_degree, double enlargement)
    : num_walkers_(num_walkers) {
  // A node of few neighbours wastes at most a quarter of the mean degree.
  const double coarsest = std::max(mean_degree / 4, 1.0);
  shift_ = std::bit_width(static_cast<std::uint64_t>(coarsest)) - 1;
  const double most = enlargement * static_cast<double>(num_walkers) * std::max(mean_degree, 1.0);
  // Slots are at most twice a degree, so live nodes alone rarely fill the Dashboard.
  num_pins_ = static_cast<std::int64_t>(std::ldexp(most, -shift_)) + 2 * num_walkers;
  if (num_pins_ << shift_ > kMostUnits / 2)
    throw std::invalid_argument("the Dashboard would need 2^30 units: take fewer walkers");
  most_pinned_ = std::int64_t{1} << std::max(shift_, log2_ceil(num_pins_ << shift_) - 5);
  // No pin is read before it is written.
  pins_ = std::make_unique_for_overwrite<std::int32_t[]>(static_cast<std::size_t>(num_pins_) + 1);
  tiles_.resize(static_cast<std::size_t>(num_walkers) + 1);
  units_.resize(tiles_.size());
  for (std::int64_t hub = num_walkers; hub > 0; --hub)
    free_hubs_.push_back(static_cast<std::int32_t>(hub));
}

std::vector<std::int32_t>& Dashboard::free_of(std::int64_t units) {
  return free_[static_cast<std::size_t>(log2_ceil(units))];
}

std::int32_t Dashboard::add(std::int64_t degree) {
  moved_.clear();
  ++size_;
  if (degree > most_pinned_) return add_hub(degree);
  const std::int64_t wanted = std::int64_t{1} << std::max(shift_, log2_ceil(degree));
  auto& free = free_of(wanted);
  if (!free.empty()) {
    const std::int32_t reused = free.back();
    free.pop_back();
    tile(reused).degree = static_cast<std::int32_t>(degree);
    return reused;
  }
  if (used_units_ + wanted > num_pins_ << shift_) clean_up();
  if (used_units_ + wanted > num_pins_ << shift_) return add_hub(degree);
  return append(wanted, degree);
}

std::int32_t Dashboard::append(std::int64_t wanted, std::int64_t degree) {
  const auto number = static_cast<std::int32_t>(tiles_.size());
  tiles_.push_back({static_cast<std::int32_t>(used_units_), static_cast<std::int32_t>(degree)});
  units_.push_back(static_cast<std::int32_t>(wanted));
  std::fill_n(pins_.get() + (used_units_ >> shift_), wanted >> shift_, number);
  used_units_ += wanted;
  return number;
}

std::int32_t Dashboard::add_hub(std::int64_t degree) {
  const std::int64_t rest = kMostUnits / 2 - hub_units_;
  if (degree > rest) ++num_truncated_;
  const std::int32_t hub = free_hubs_.back();
  free_hubs_.pop_back();
  hubs_.push_back(hub);
  tile(hub).degree = static_cast<std::int32_t>(std::min(degree, rest));
  hub_units_ += tile(hub).degree;
  return hub;
}

std::int32_t Dashboard::pop(Draws& draws) {
  // Units behind the last pin belong to the hubs, whose common tile always accepts.
  const auto behind = static_cast<std::int32_t>(used_units_);
  pins_[static_cast<std::size_t>(used_units_ >> shift_)] = kHubs;
  tile(kHubs) = {behind, 1};
  const Board board{pins_.get(), tiles_.data(), behind,
                    static_cast<std::int32_t>(used_units_ + hub_units_), shift_};
  std::int32_t found = -1;
  while (found < 0) {
    const std::uint64_t random[] = {draws.next(), draws.next()};
    found = probe(board, random);
    ++num_probes_;
  }
  --size_;
  if (found == kHubs) return pop_hub(draws);
  tile(found).degree = 0;
  free_of(units(found)).push_back(found);
  return found;
}

std::int32_t Dashboard::pop_hub(Draws& draws) {
  std::int64_t place = draws.below(hub_units_);
  auto hub = hubs_.begin();
  while (place >= tile(*hub).degree) place -= tile(*hub++).degree;
  const std::int32_t found = *hub;
  hub_units_ -= tile(found).degree;
  *hub = hubs_.back();
  hubs_.pop_back();
  free_hubs_.push_back(found);
  return found;
}

void Dashboard::clean_up() {
  ++num_cleanups_;
  used_units_ = 0;
  for (auto& free : free_) free.clear();
  const auto first = static_cast<std::size_t>(num_walkers_) + 1;
  const std::vector<Tile> tiles(tiles_.begin() + static_cast<std::ptrdiff_t>(first), tiles_.end());
  const std::vector<std::int32_t> lengths(units_.begin() + static_cast<std::ptrdiff_t>(first),
                                          units_.end());
  tiles_.resize(first);
  units_.resize(first);
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    if (tiles[i].degree == 0) continue;
    const std::int32_t now = append(lengths[i], tiles[i].degree);
    moved_.push_back({static_cast<std::int32_t>(first + i), now});
  }
}

}  // namespace hpcgnn::sampling
