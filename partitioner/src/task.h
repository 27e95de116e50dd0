/// What the phases of one run share, and what they hand on.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "deadline.h"
#include "state/score.h"
#include "state/surroundings.h"
#include "volpart/options.h"

namespace hpcgnn::volpart {

struct Task {
  Options options;
  int num_parts = 1;
  /// Rows that the busiest receiver gets in every partition; 0 where receiving is not priced.
  Rows receive_bound = 0;
  const Deadline* deadline = nullptr;
  /// What is outside, where a share is refined.
  Surroundings* around = nullptr;
  std::function<void(const std::string&)> report;
};

struct Candidate {
  std::vector<Part> part;
  Score score;
};

}  // namespace hpcgnn::volpart
