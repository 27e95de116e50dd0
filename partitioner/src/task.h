/// Data shared by the phases of one run.
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
  /// Lower bound of the busiest receiver's rows in any partition; 0 if receiving is not priced.
  Rows receive_bound = 0;
  const Deadline* deadline = nullptr;
  /// The surroundings, if a share is refined.
  Surroundings* around = nullptr;
  std::function<void(const std::string&)> report;
};

struct Candidate {
  std::vector<Part> part;
  Score score;
};

}  // namespace hpcgnn::volpart
