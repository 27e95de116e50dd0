#include "volpart/metrics.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "checks.h"

namespace hpcgnn::volpart {
namespace {

std::vector<std::int64_t> rows_by_part(std::span<const std::int32_t> part) {
  std::vector<std::int64_t> order(part.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t left, std::int64_t right) {
    return part[at(left)] < part[at(right)];
  });
  return order;
}

double imbalance_of(const CsrView& csr, std::span<const std::int32_t> part, int num_parts,
                    std::span<const std::int64_t> weights) {
  std::vector<std::int64_t> load(at(num_parts)), heaviest(at(num_parts));
  std::int64_t total = 0;
  for (std::int64_t row = 0; row < csr.num_rows(); ++row) {
    const std::int64_t weight =
        weights.empty() ? csr.row_end(row) - csr.row_begin(row) : weights[at(row)];
    const std::size_t p = at(part[at(row)]);
    total += weight;
    load[p] += weight;
    heaviest[p] = std::max(heaviest[p], weight);
  }
  if (total == 0) return 0;
  const double average = static_cast<double>(total) / num_parts;
  double worst = 0;
  for (std::size_t p = 0; p < load.size(); ++p)
    worst = std::max(
        worst, static_cast<double>(load[p]) / std::max(average, static_cast<double>(heaviest[p])));
  return worst - 1;
}

}  // namespace

void check_parts(int num_parts) {
  if (num_parts < 1 || num_parts > kMaxParts)
    throw std::invalid_argument(std::to_string(num_parts) + " parts are not in [1, " +
                                std::to_string(kMaxParts) + "]");
}

void check_parts(const CsrView& csr, std::span<const std::int32_t> part, int num_parts) {
  check_parts(num_parts);
  if (part.size() != at(csr.num_rows()))
    throw std::invalid_argument(std::to_string(part.size()) + " part numbers for " +
                                std::to_string(csr.num_rows()) + " rows");
  for (const std::int32_t p : part)
    if (p < 0 || p >= num_parts)
      throw std::invalid_argument("part number " + std::to_string(p) + " is not in [0, " +
                                  std::to_string(num_parts) + ")");
}

void check_weights(const CsrView& csr, std::span<const std::int64_t> weights) {
  if (!weights.empty() && weights.size() != at(csr.num_rows()))
    throw std::invalid_argument("there must be one weight for each row");
  for (const std::int64_t weight : weights)
    if (weight < 0 || weight > std::int64_t{1} << 31)
      throw std::invalid_argument("a weight must be in [0, 2^31]");
}

Metrics measure(const CsrView& csr, std::span<const std::int32_t> part, int num_parts,
                std::span<const std::int64_t> weights) {
  Metrics metrics;
  std::vector<std::int64_t> send(at(num_parts)), recv(at(num_parts)), from(at(num_parts));
  std::vector<std::int32_t> last_reader(part.size(), -1);
  std::int32_t current = -1;
  std::vector<std::int32_t> senders;
  const auto close_part = [&] {
    for (const std::int32_t sender : senders)
      metrics.max_pair_rows =
          std::max(metrics.max_pair_rows, std::exchange(from[at(sender)], std::int64_t{0}));
    senders.clear();
  };
  for (const std::int64_t row : rows_by_part(part)) {
    const std::int32_t reader = part[at(row)];
    if (reader != current) close_part();
    current = reader;
    for (std::int64_t k = csr.row_begin(row); k < csr.row_end(row); ++k) {
      const std::size_t column = at(csr.column(k));
      const std::int32_t owner = part[column];
      if (owner == reader) continue;
      ++metrics.edge_cut;
      if (last_reader[column] == reader) continue;
      last_reader[column] = reader;
      ++send[at(owner)];
      ++recv[at(reader)];
      if (from[at(owner)]++ == 0) senders.push_back(owner);
    }
  }
  close_part();
  metrics.total_rows = std::accumulate(send.begin(), send.end(), std::int64_t{0});
  metrics.max_send_rows = *std::ranges::max_element(send);
  metrics.max_recv_rows = *std::ranges::max_element(recv);
  metrics.imbalance = imbalance_of(csr, part, num_parts, weights);
  return metrics;
}

}  // namespace hpcgnn::volpart
