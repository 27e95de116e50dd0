#include "volpart/streaming.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include "checks.h"

namespace hpcgnn::volpart {
namespace {

/// The least loaded part, by a tournament tree: O(1) to read, O(log parts) to update.
class LeastLoaded {
 public:
  explicit LeastLoaded(std::span<const std::int64_t> load)
      : load_(load), leaves_(std::bit_ceil(load.size())), winner_(2 * leaves_) {
    for (std::size_t i = 0; i < leaves_; ++i)
      winner_[leaves_ + i] = static_cast<std::int32_t>(std::min(i, load.size() - 1));
    for (std::size_t i = leaves_ - 1; i > 0; --i) play(i);
  }

  std::int32_t part() const { return winner_[1]; }

  void changed(std::int32_t part) {
    for (std::size_t i = (leaves_ + at(part)) / 2; i > 0; i /= 2) play(i);
  }

 private:
  void play(std::size_t i) {
    const std::int32_t left = winner_[2 * i], right = winner_[2 * i + 1];
    winner_[i] = load_[at(right)] < load_[at(left)] ? right : left;
  }

  std::span<const std::int64_t> load_;
  std::size_t leaves_;
  std::vector<std::int32_t> winner_;
};

/// The factor of a part's attraction at a load.
double room(double load, double capacity) {
  double power = std::min(load / capacity, 1.0);
  for (int i = 0; i < 4; ++i) power *= power;
  return 1 - power;
}

}  // namespace

template <class Index>
void StreamedRows<Index>::check(std::size_t num_vertices) const {
  const bool fits =
      !indptr.empty() && indptr.front() == 0 && std::is_sorted(indptr.begin(), indptr.end()) &&
      at(indptr.back()) == columns.size() && first >= 0 && at(first + num_rows()) <= num_vertices;
  if (!fits) throw std::invalid_argument("offsets of streamed rows do not fit");
  for (const Index column : columns)
    if (column < 0 || at(column) >= num_vertices)
      throw std::invalid_argument("a column of streamed rows does not fit");
}

template <class Index>
std::int64_t assign_rows(const StreamedRows<Index>& rows, std::span<const std::int64_t> work_of,
                         std::span<std::int32_t> part, std::span<std::int64_t> load,
                         double capacity) {
  std::vector<std::int64_t> neighbours(load.size(), 0);
  std::vector<std::int32_t> near;
  LeastLoaded least(load);
  std::int64_t moved = 0;
  for (std::int64_t i = 0; i < rows.num_rows(); ++i) {
    const std::int64_t vertex = rows.first + i, work = work_of[at(vertex)];
    const std::int32_t before = part[at(vertex)];
    if (before >= 0) {
      load[at(before)] -= work;
      near.push_back(before);
    }
    for (std::int64_t k = rows.indptr[at(i)]; k < rows.indptr[at(i) + 1]; ++k) {
      const auto column = static_cast<std::int64_t>(rows.columns[at(k)]);
      const std::int32_t other = part[at(column)];
      if (column == vertex || other < 0) continue;
      if (neighbours[at(other)]++ == 0 && other != before) near.push_back(other);
    }
    std::int32_t best = -1;
    double most = -1;
    for (const std::int32_t candidate : near) {
      const std::int64_t held = load[at(candidate)];
      const bool fits = static_cast<double>(held + work) <= capacity || candidate == before;
      const auto count = static_cast<double>(neighbours[at(candidate)]);
      const double score = fits ? count * room(static_cast<double>(held), capacity) : -1;
      if (score > most) {
        most = score;
        best = candidate;
      }
    }
    for (const std::int32_t candidate : near) neighbours[at(candidate)] = 0;
    near.clear();
    if (before >= 0) least.changed(before);
    if (best < 0) best = least.part();
    moved += best != before;
    part[at(vertex)] = best;
    load[at(best)] += work;
    least.changed(best);
  }
  return moved;
}

void mark_readers(std::span<const std::int64_t> vertices, std::span<const std::int32_t> part,
                  std::int32_t base, std::span<std::uint64_t> readers) {
  if (vertices.size() != part.size())
    throw std::invalid_argument("there must be a part for each vertex that is read");
  for (std::size_t i = 0; i < part.size(); ++i) {
    const std::int32_t reader = part[i] - base;
    if (reader < 0 || reader >= kMarked) continue;
    if (vertices[i] < 0 || at(vertices[i]) >= readers.size())
      throw std::invalid_argument("a vertex that is read does not fit");
    readers[at(vertices[i])] |= std::uint64_t{1} << reader;
  }
}

void count_readers(std::span<const std::uint64_t> readers, std::span<const std::int32_t> part,
                   std::int32_t base, std::span<std::int64_t> counts) {
  for (std::size_t v = 0; v < readers.size(); ++v)
    for (std::uint64_t left = readers[v]; left != 0; left &= left - 1) {
      const int reader = std::countr_zero(left);
      if (base + reader != part[v]) ++counts[at(kMarked * part[v] + reader)];
    }
}

template struct StreamedRows<std::int32_t>;
template struct StreamedRows<std::int64_t>;
template std::int64_t assign_rows(const StreamedRows<std::int32_t>&, std::span<const std::int64_t>,
                                  std::span<std::int32_t>, std::span<std::int64_t>, double);
template std::int64_t assign_rows(const StreamedRows<std::int64_t>&, std::span<const std::int64_t>,
                                  std::span<std::int32_t>, std::span<std::int64_t>, double);

}  // namespace hpcgnn::volpart
