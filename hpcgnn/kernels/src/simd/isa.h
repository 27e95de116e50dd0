/// Which instruction sets this machine runs.
#pragma once

#include <string>
#include <vector>

#include "types.h"

namespace hpcgnn::kernels {

/// The widest instruction set that both this build and this machine support (cpuid, asked once).
Isa best_isa();

/// Names of the usable instruction sets, narrowest first: "portable", "avx2", "avx512".
std::vector<std::string> available_isas();

/// Parse a name of `available_isas()`, or "auto" for `best_isa()`.
/// @throws std::invalid_argument when the name is unknown or this machine lacks it.
Isa parse_isa(const std::string& name);

}  // namespace hpcgnn::kernels
