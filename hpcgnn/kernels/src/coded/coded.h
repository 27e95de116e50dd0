/// Columns of a matrix in fewer than 4 bytes each, and their decoding.
#pragma once

#include <cstdint>
#include <vector>

#include "types.h"

namespace hpcgnn::kernels {

/// Entries that are decoded together.
inline constexpr std::int64_t kChunk = 256;
/// Entries whose numbers have the same bits; the last group of a chunk is filled up with zeros.
inline constexpr std::int64_t kGroup = 16;
/// Elements behind the result that decoding may overwrite, and bytes behind a code that it reads.
inline constexpr std::int64_t kSlack = 32;

/// The columns of all entries, in their order, which may be any; sorted rows take the least.
///
/// A chunk is one byte with its lag, four with its base, a byte for each group with its bits, and
/// the numbers of the groups. With lag 0 they are gaps from the entry before; the first of a row,
/// or of the chunk, counts from the base. With lag L they are differences from the entry L before,
/// or from the base, with the sign in the last bit: a mesh's rows are those before them, moved by
/// one. Differences are modulo 2^32.
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

  /// Decode whole chunks, of the rows that were coded.
  /// @param out has room for kChunk elements a chunk, and kSlack.
  void decode(const std::int64_t* indptr, std::int64_t num_rows, std::int64_t first_chunk,
              std::int64_t last_chunk, Isa isa, std::int32_t* out) const;

 private:
  std::int64_t size_;
  std::vector<std::int64_t> starts_;  // byte where each chunk begins
  std::vector<std::uint8_t> code_;
};

/// What the decoder of an instruction set works on.
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
