/// The library's entry: partition a graph by the volume that its parts exchange.
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

/// A partition to start from, and the name to report it under. Without a partition, one is made by
/// recursive bisection of a coarse hypergraph.
struct Start {
  std::string name;
  std::optional<std::span<const std::int32_t>> part;
};

struct Result {
  std::vector<std::int32_t> part;
  /// By the definitions of metrics.h, for the row weights that balance was asked for.
  Metrics metrics;
  /// Name of the start that the result was refined from.
  std::string winner;
};

/// Called on the calling thread with a text on progress and the seconds since the start. What it
/// throws ends the run.
using Report = std::function<void(const std::string&, double)>;

/// Refine every start, `options.threads` times each, and return the best result by the exact
/// objective.
///
/// Where a start keeps the weight limits, so does the result, and its objective is not worse. A
/// start that breaks them is balanced first, by the cheapest moves that are found, and the same
/// holds for what that gives.
///
/// @param[in] weights Weight of each row, at least 0; empty means its non-zeros (an empty row whose
/// node is sent: 1).
/// @throws std::invalid_argument for a malformed CSR, weights or starts that do not fit it, no
/// start, parts outside [1, kMaxParts], or options out of range.
Result part_graph(const CsrView& csr, int num_parts, std::span<const std::int64_t> weights,
                  const std::vector<Start>& starts, const Options& options, const Report& report);

}  // namespace hpcgnn::volpart
