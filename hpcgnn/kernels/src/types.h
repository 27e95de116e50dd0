/// Element types and dispatch names shared by every kernel.
#pragma once

#include <cstdint>

/// Code of the ISA-specific files must not leave out-of-line copies behind: the linker could pick a
/// copy compiled for a wider instruction set and run it on a machine without it.
#define HPCGNN_INLINE [[gnu::always_inline]] inline

namespace hpcgnn::kernels {

/// Upper 16 bits of an IEEE float32; stored as raw bits, never used in arithmetic.
struct BFloat16 {
  std::uint16_t bits;
};

/// IEEE binary16; stored as raw bits, never used in arithmetic.
struct Float16 {
  std::uint16_t bits;
};

/// Storage type of a dense operand.
enum class Storage : std::uint8_t { kFloat32, kFloat64, kBFloat16, kFloat16, kInt32 };
inline constexpr int kNumStorages = 5;

/// A kernel is compiled for each number of registers of columns up to this, which takes most of the
/// time to compile it.
#ifndef HPCGNN_COLUMN_REGS
#define HPCGNN_COLUMN_REGS 8
#endif
inline constexpr int kColumnRegs = HPCGNN_COLUMN_REGS;

/// Bytes of one element of `storage`.
constexpr std::int64_t storage_bytes(Storage storage) {
  if (storage == Storage::kFloat64) return 8;
  return storage == Storage::kFloat32 || storage == Storage::kInt32 ? 4 : 2;
}

/// The type of sums: float64 for float64 and for integers, which are then exact below 2^53; float32
/// for everything else.
constexpr Storage accumulator_of(Storage storage) {
  const bool wide = storage == Storage::kFloat64 || storage == Storage::kInt32;
  return wide ? Storage::kFloat64 : Storage::kFloat32;
}

/// Instruction sets that have their own kernels, narrowest first.
enum class Isa : std::uint8_t { kPortable, kAvx2, kAvx512 };

/// Bytes of a vector register of `isa`.
constexpr std::int64_t register_bytes(Isa isa) {
  return isa == Isa::kAvx512 ? 64 : isa == Isa::kAvx2 ? 32 : 16;
}

}  // namespace hpcgnn::kernels
