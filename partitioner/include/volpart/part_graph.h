/// The entry point of the library: partition a graph by its communication volume.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "volpart/csr.h"
#include "volpart/metrics.h"
#include "volpart/options.h"

namespace hpcgnn::volpart {

/// An initial partition, with its name in reports. Without a partition, one is made by recursive
/// bisection of a coarse hypergraph.
struct Start {
  std::string name;
  std::optional<std::span<const std::int32_t>> part;
};

struct Result {
  std::vector<std::int32_t> part;
  /// The metrics of metrics.h, for the row weights used for balance.
  Metrics metrics;
  /// Name of the start from which the result was refined.
  std::string winner;
};

/// Called on the calling thread with a progress message and the seconds since the start. An
/// exception from it ends the run.
using Report = std::function<void(const std::string&, double)>;

/// Refine every start, `options.threads` times each, and return the best result by the exact
/// objective.
///
/// If a start keeps the weight limits, so does the result, and its objective is not worse. A start
/// that breaks them is first balanced by the cheapest moves found, and the same holds for the
/// balanced start.
///
/// @param[in] weights Weight of each row, at least 0; empty means its non-zeros (1 for an empty row
/// whose node is sent).
/// @throws std::invalid_argument for a malformed CSR, weights or starts that do not fit it, no
/// start, parts outside [1, kMaxParts], or options out of range.
Result part_graph(const CsrView& csr, int num_parts, std::span<const std::int64_t> weights,
                  const std::vector<Start>& starts, const Options& options, const Report& report);

}  // namespace hpcgnn::volpart
