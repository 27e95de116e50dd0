/// Columns of a matrix in fewer than 4 bytes each, and their decoding.
#pragma once

#include <cstdint>
#include <vector>

#include "types.h"

namespace hpcgnn::kernels {

/// Entries that are decoded together.
inline constexpr std::int64_t kChunk = 256;
/// Entries whose numbers have the same bit width; zeros fill up the last group of a chunk.
inline constexpr std::int64_t kGroup = 16;
/// Elements that decoding may overwrite behind its result, and bytes that it reads behind a code.
inline constexpr std::int64_t kSlack = 32;

/// The columns of all entries, in any order; sorted rows take the least memory.
///
/// A chunk is one byte with its lag, four with its base, a byte with the bit width of each group,
/// and the numbers of the groups. With lag 0 these are gaps from the entry before; the first of a
/// row, or of the chunk, counts from the base. With lag L they are differences from the entry L
/// before, or from the base, with the sign in the last bit: a mesh's rows are those before them,
/// moved by one. Differences are modulo 2^32.
class CodedColumns {
 public:
  /// @pre indptr holds num_rows + 1 non-decreasing offsets from 0.
  CodedColumns(const std::int64_t* indptr, const std::int32_t* indices, std::int64_t num_rows,
               int num_threads);

  /// Number of entries.
  std::int64_t size() const { return size_; }
  /// Bytes of memory.
  std::int64_t bytes() const {
    return static_cast<std::int64_t>(code_.size() + starts_.size() * sizeof(std::int64_t));
  }

  /// Decode whole chunks; `indptr` is that of the coded rows.
  /// @param out has room for kChunk elements for each chunk, and kSlack more.
  void decode(const std::int64_t* indptr, std::int64_t num_rows, std::int64_t first_chunk,
              std::int64_t last_chunk, Isa isa, std::int32_t* out) const;

 private:
  std::int64_t size_;
  std::vector<std::int64_t> starts_;  // byte where each chunk begins
  std::vector<std::uint8_t> code_;
};

/// The operands of the decoder of an instruction set.
struct DecodeProblem {
  const std::uint8_t* code;
  const std::int64_t* starts;
  const std::int64_t* indptr;
  std::int64_t num_rows;
  std::int64_t size;
  std::int64_t row;  ///< that of the first entry
  std::int64_t first_chunk;
  std::int64_t last_chunk;
  std::int32_t* out;
};

struct CodedTable {
  void (*decode)(const DecodeProblem&);

  static const CodedTable portable, avx2, avx512;  ///< see table_of
};

}  // namespace hpcgnn::kernels
