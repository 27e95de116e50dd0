#include "coded/coded.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "parallel.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

constexpr std::int64_t kTaskChunks = 256;
constexpr std::int64_t kHead = 5;
constexpr std::int64_t kMostLag = 255;
// More bits than vectors can unpack are rounded up to a word.
constexpr int kMostBits = 25;

using Numbers = std::array<std::uint32_t, kChunk>;

/// The numbers of a chunk in one of the two forms.
struct Form {
  std::uint8_t lag;
  std::uint32_t base;
  Numbers numbers;  // zeros behind the last

  std::uint8_t bits_of(std::int64_t group) const {
    std::uint32_t all = 0;
    for (std::int64_t i = 0; i < kGroup; ++i)
      all |= numbers[static_cast<std::size_t>(group * kGroup + i)];
    const int bits = std::bit_width(all);
    return static_cast<std::uint8_t>(bits > kMostBits ? 32 : bits);
  }
};

/// The entries of a chunk, and those that begin a row.
class Chunk {
 public:
  Chunk(const std::int64_t* indptr, const std::int32_t* indices, std::int64_t num_rows,
        std::int64_t size, std::int64_t chunk)
      : columns_(indices + chunk * kChunk), count_(std::min(kChunk, size - chunk * kChunk)) {
    const std::int64_t first = chunk * kChunk;
    begins_[0] = true;
    const std::int64_t* const end = indptr + num_rows + 1;
    const std::int64_t *row = std::upper_bound(indptr, end, first), *before = nullptr;
    for (; row != end && *row < first + count_; ++row) {
      begins_[static_cast<std::size_t>(*row - first)] = true;
      // If two neighbouring rows have the same length, others may have it, too.
      if (before && *row > *before) lag_ = *row - *before;
      before = row;
    }
  }

  std::int64_t groups() const { return (count_ + kGroup - 1) / kGroup; }

  /// The form that takes fewer bytes.
  Form best() const {
    const Form gaps = in_rows();
    if (lag_ == 0 || lag_ > kMostLag || lag_ >= count_) return gaps;
    const Form lagged = with_lag();
    return bytes(lagged) < bytes(gaps) ? lagged : gaps;
  }

  std::int64_t bytes(const Form& form) const {
    std::int64_t total = kHead + groups();
    for (std::int64_t group = 0; group < groups(); ++group)
      total += form.bits_of(group) * kGroup / 8;
    return total;
  }

  void write(const Form& form, std::uint8_t* to) const {
    to[0] = form.lag;
    std::memcpy(to + 1, &form.base, sizeof form.base);
    std::uint8_t* packed = to + kHead + groups();
    for (std::int64_t group = 0; group < groups(); ++group) {
      const int bits = to[kHead + group] = form.bits_of(group);
      std::uint64_t word = 0;
      int filled = 0;
      for (std::int64_t i = 0; i < kGroup; ++i) {
        word |= std::uint64_t{form.numbers[static_cast<std::size_t>(group * kGroup + i)]} << filled;
        for (filled += bits; filled >= 8; filled -= 8, word >>= 8)
          *packed++ = static_cast<std::uint8_t>(word);
      }
    }
  }

 private:
  std::uint32_t column(std::int64_t i) const { return static_cast<std::uint32_t>(columns_[i]); }

  Form in_rows() const {
    std::uint32_t base = column(0);
    for (std::int64_t i = 0; i < count_; ++i)
      if (begins_[static_cast<std::size_t>(i)]) base = std::min(base, column(i));
    Form form{0, base, {}};
    for (std::int64_t i = 0; i < count_; ++i) {
      const auto at = static_cast<std::size_t>(i);
      form.numbers[at] = column(i) - (begins_[at] ? base : column(i - 1));
    }
    return form;
  }

  Form with_lag() const {
    Form form{static_cast<std::uint8_t>(lag_), column(0), {}};
    for (std::int64_t i = 0; i < count_; ++i) {
      const std::uint32_t gap = column(i) - (i < lag_ ? form.base : column(i - lag_));
      form.numbers[static_cast<std::size_t>(i)] = gap << 1 ^ (0u - (gap >> 31));
    }
    return form;
  }

  const std::int32_t* columns_;
  std::int64_t count_;
  std::int64_t lag_ = 0;
  std::array<bool, kChunk> begins_{};
};

}  // namespace

CodedColumns::CodedColumns(const std::int64_t* indptr, const std::int32_t* indices,
                           std::int64_t num_rows, int num_threads)
    : size_(indptr[num_rows]) {
  const std::int64_t chunks = (size_ + kChunk - 1) / kChunk;
  starts_.resize(static_cast<std::size_t>(chunks) + 1);
  const auto for_chunks = [&](const auto& body) {
    const std::int64_t tasks = (chunks + kTaskChunks - 1) / kTaskChunks;
    parallel_tasks(resolve_threads(num_threads), tasks, [&](std::int64_t task) {
      const std::int64_t stop = std::min(chunks, (task + 1) * kTaskChunks);
      for (std::int64_t chunk = task * kTaskChunks; chunk < stop; ++chunk)
        body(Chunk(indptr, indices, num_rows, size_, chunk), static_cast<std::size_t>(chunk));
    });
  };
  // Coded twice, so that the size is known at the start: growing would need twice the memory.
  for_chunks([&](const Chunk& entries, std::size_t chunk) {
    starts_[chunk + 1] = entries.bytes(entries.best());
  });
  for (std::size_t chunk = 0; chunk + 1 < starts_.size(); ++chunk)
    starts_[chunk + 1] += starts_[chunk];
  code_.resize(static_cast<std::size_t>(starts_.back() + kSlack));
  for_chunks([&](const Chunk& entries, std::size_t chunk) {
    entries.write(entries.best(), code_.data() + starts_[chunk]);
  });
}

void CodedColumns::decode(const std::int64_t* indptr, std::int64_t num_rows,
                          std::int64_t first_chunk, std::int64_t last_chunk, Isa isa,
                          std::int32_t* out) const {
  if (first_chunk >= last_chunk) return;
  const std::int64_t row =
      std::upper_bound(indptr, indptr + num_rows + 1, first_chunk * kChunk) - indptr - 1;
  table_of<CodedTable>(isa).decode({.code = code_.data(),
                                    .starts = starts_.data(),
                                    .indptr = indptr,
                                    .num_rows = num_rows,
                                    .size = size_,
                                    .row = std::clamp<std::int64_t>(row, 0, num_rows - 1),
                                    .first_chunk = first_chunk,
                                    .last_chunk = last_chunk,
                                    .out = out});
}

}  // namespace hpcgnn::kernels
