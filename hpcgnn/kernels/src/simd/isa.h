/// The instruction sets that this machine runs, and the kernels of each.
#pragma once

#include <string>
#include <vector>

#include "types.h"

namespace hpcgnn::kernels {

/// The widest instruction set that both this build and this machine support (cpuid, called once).
Isa best_isa();

/// Whether Intel made this processor.
bool is_intel();

/// Names of the usable instruction sets, narrowest first: "portable", "avx2", "avx512".
std::vector<std::string> available_isas();

/// Parse a name of `available_isas()`, or "auto" for `best_isa()`.
/// @throws std::invalid_argument when the name is unknown or this machine lacks it.
Isa parse_isa(const std::string& name);

/// The kernels of a family for an instruction set. `Table` holds their addresses and, as static
/// members, one table for each instruction set, each from its own translation unit (table.cc).
template <class Table>
const Table& table_of(Isa isa) {
#ifdef HPCGNN_X86
  if (isa == Isa::kAvx512) return Table::avx512;
  if (isa == Isa::kAvx2) return Table::avx2;
#endif
  static_cast<void>(isa);
  return Table::portable;
}

}  // namespace hpcgnn::kernels
