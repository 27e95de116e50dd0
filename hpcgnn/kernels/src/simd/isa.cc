#include "simd/isa.h"

#include <stdexcept>

namespace hpcgnn::kernels {
namespace {

constexpr const char* kNames[] = {"portable", "avx2", "avx512"};

Isa detect() {
#ifdef HPCGNN_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    return Isa::kAvx512;
  // Every processor with AVX2 and FMA also has F16C, which not all compilers can check.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::kAvx2;
#endif
  return Isa::kPortable;
}

}  // namespace

Isa best_isa() {
  static const Isa isa = detect();
  return isa;
}

bool is_intel() {
#ifdef HPCGNN_X86
  __builtin_cpu_init();
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

std::vector<std::string> available_isas() {
  return {kNames, kNames + static_cast<int>(best_isa()) + 1};
}

Isa parse_isa(const std::string& name) {
  if (name == "auto") return best_isa();
  for (int i = 0; i <= static_cast<int>(best_isa()); ++i)
    if (name == kNames[i]) return static_cast<Isa>(i);
  throw std::invalid_argument("isa '" + name + "' is not one of those of this machine (auto, " +
                              kNames[0] + " ... " + kNames[static_cast<int>(best_isa())] + ")");
}

}  // namespace hpcgnn::kernels
