/// The decoder of coded columns; included once per instruction set.
#pragma once

#include <bit>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "coded/coded.h"

namespace hpcgnn::kernels {

static_assert(std::endian::native == std::endian::little, "codes are read as whole words");

#ifdef __AVX2__
/// How to pick eight numbers of `bits` bits from two vectors of 16 bytes, of which the second
/// begins at byte `bits / 2`: four bytes for each number, and the shift of these.
struct Picks {
  std::uint8_t bytes[32];
  std::uint32_t shifts[8];
};

/// Numbers of more bits may span five bytes.
inline constexpr int kMostPicked = 25;

struct AllPicks {
  Picks of[kMostPicked + 1];
};

consteval AllPicks make_picks() {
  AllPicks all{};
  for (int bits = 0; bits <= kMostPicked; ++bits)
    for (int i = 0; i < 8; ++i) {
      const int bit = bits * i - (i < 4 ? 0 : bits / 2 * 8);
      Picks& picks = all.of[bits];
      picks.shifts[i] = static_cast<std::uint32_t>(bit % 8);
      for (int k = 0; k < 4; ++k) picks.bytes[4 * i + k] = static_cast<std::uint8_t>(bit / 8 + k);
    }
  return all;
}

inline constexpr AllPicks kPicks = make_picks();
#endif

/// Unpack a group of numbers of `bits` bits.
HPCGNN_INLINE void unpack_group(const std::uint8_t* from, int bits, std::uint32_t* to) {
#ifdef __AVX2__
  if (bits <= kMostPicked) {
    const Picks& picks = kPicks.of[bits];
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(picks.bytes));
    const __m256i shifts = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(picks.shifts));
    const __m256i mask = _mm256_set1_epi32(static_cast<int>((1u << bits) - 1));
    for (int half = 0; half < 2; ++half) {
      const std::uint8_t* const own = from + half * bits;
      const __m256i words = _mm256_inserti128_si256(
          _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(own))),
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(own + bits / 2)), 1);
      const __m256i numbers = _mm256_srlv_epi32(_mm256_shuffle_epi8(words, bytes), shifts);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8 * half),
                          _mm256_and_si256(numbers, mask));
    }
    return;
  }
#endif
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  for (int i = 0; i < kGroup; ++i) {
    std::uint64_t word;
    std::memcpy(&word, from + bits * i / 8, sizeof word);
    to[i] = static_cast<std::uint32_t>(word >> bits * i % 8 & mask);
  }
}

/// Replace numbers by their prefix sums.
HPCGNN_INLINE void add_up(std::uint32_t* numbers, std::int64_t count) {
#ifdef __AVX2__
  __m256i before = _mm256_setzero_si256();
  const __m256i last = _mm256_set1_epi32(7), low_last = _mm256_setr_epi32(0, 0, 0, 0, 3, 3, 3, 3);
  for (std::int64_t i = 0; i < count; i += 8) {
    __m256i* const at = reinterpret_cast<__m256i*>(numbers + i);
    __m256i sums = _mm256_loadu_si256(at);
    sums = _mm256_add_epi32(sums, _mm256_slli_si256(sums, 4));
    sums = _mm256_add_epi32(sums, _mm256_slli_si256(sums, 8));
    const __m256i low = _mm256_permutevar8x32_epi32(sums, low_last);
    sums = _mm256_add_epi32(sums, _mm256_blend_epi32(_mm256_setzero_si256(), low, 0xf0));
    const __m256i all = _mm256_add_epi32(sums, before);
    // The sum of these eight does not wait for the chain of those before.
    before = _mm256_add_epi32(before, _mm256_permutevar8x32_epi32(sums, last));
    _mm256_storeu_si256(at, all);
  }
#else
  std::uint32_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) numbers[i] = sum += numbers[i];
#endif
}

/// Write columns from differences to those `lag` entries before, at most `kWide`: one row at a time
/// in registers. Elements written behind it are overwritten by the next.
template <int kWide>
HPCGNN_INLINE void add_narrow_rows(const std::uint32_t* numbers, std::int64_t count,
                                   std::int64_t lag, std::uint32_t base, std::uint32_t* out) {
  std::uint32_t columns[kWide];
  for (std::uint32_t& column : columns) column = base;
  for (std::int64_t i = 0; i < count; i += lag)
    for (std::int64_t k = 0; k < kWide; ++k) out[i + k] = columns[k] += numbers[i + k];
}

/// The same for any lag, and differences with their signs in the last bits.
HPCGNN_INLINE void add_rows(std::uint32_t* numbers, std::int64_t count, std::int64_t lag,
                            std::uint32_t base, std::uint32_t* out) {
  for (std::int64_t i = 0; i < kChunk; ++i) numbers[i] = numbers[i] >> 1 ^ (0u - (numbers[i] & 1));
  // Not wider than needed: most wide stores touch two lines.
  if (lag <= 8) {
    add_narrow_rows<8>(numbers, count, lag, base, out);
  } else if (lag <= 16) {
    add_narrow_rows<16>(numbers, count, lag, base, out);
  } else {
    for (std::int64_t i = 0; i < lag; ++i) out[i] = numbers[i] + base;
    for (std::int64_t i = lag; i < count; ++i) out[i] = numbers[i] + out[i - lag];
  }
}

template <class V>
void decode_chunks(const DecodeProblem& p) {
  std::uint32_t numbers[kChunk + kSlack];
  std::int64_t row = p.row;
  for (std::int64_t chunk = p.first_chunk; chunk < p.last_chunk; ++chunk) {
    const std::int64_t first = chunk * kChunk;
    const std::int64_t count = p.size - first < kChunk ? p.size - first : kChunk;
    const std::int64_t groups = (count + kGroup - 1) / kGroup;
    std::uint32_t* const out =
        reinterpret_cast<std::uint32_t*>(p.out + (chunk - p.first_chunk) * kChunk);
    const std::uint8_t* const head = p.code + p.starts[chunk];
    const std::int64_t lag = head[0];
    std::uint32_t base;
    std::memcpy(&base, head + 1, sizeof base);
    const std::uint8_t* from = head + 5 + groups;
    for (std::int64_t group = 0; group < groups; ++group) {
      unpack_group(from, head[5 + group], numbers + group * kGroup);
      from += head[5 + group] * kGroup / 8;
    }
    if (lag > 0) {
      add_rows(numbers, count, lag, base, out);
      continue;
    }
    add_up(numbers, groups * kGroup);
    std::uint32_t offset = base;
    for (std::int64_t i = 0; i < count;) {
      while (row + 1 < p.num_rows && p.indptr[row + 1] <= first + i) ++row;
      const std::int64_t end = p.indptr[row + 1] - first;
      const std::int64_t stop = end > i && end < count ? end : count;
      // Elements written behind the row are overwritten later. Most rows are not longer, so the
      // branch is predicted.
      std::int64_t e = i;
      do {
        for (std::int64_t k = 0; k < kGroup; ++k) out[e + k] = numbers[e + k] + offset;
        e += kGroup;
      } while (e < stop);
      offset = base - numbers[stop - 1];
      i = stop;
    }
  }
}

template <class F32, class F64>
constexpr CodedTable make_table() {
  return {decode_chunks<F32>};
}

}  // namespace hpcgnn::kernels
