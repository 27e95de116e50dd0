#include "attention/shared.h"

#include <algorithm>
#include <array>
#include <vector>

#include "attention/tasks.h"
#include "parallel.h"
#include "random_bits.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

// Enough edges to be worth the start of a task, few enough to balance threads.
constexpr std::int64_t kTaskEdges = 4096;

const SharedKernels& shared_kernels_of(const AttentionBlock& block) {
  const SharedTable& table = table_of<SharedTable>(block.isa);
  return block.storage == Storage::kFloat64 ? table.float64 : table.float32;
}

/// The rows of a block in pieces with about equally many edges.
class RowPieces {
 public:
  RowPieces(const AttentionBlock& block, std::int64_t num_pieces)
      : block_(block), pieces_(std::max<std::int64_t>(1, num_pieces)) {}

  std::int64_t first(std::int64_t piece) const {
    if (piece >= pieces_) return block_.num_rows;
    if (piece <= 0) return 0;
    const std::int64_t* const begin = block_.indptr;
    const std::int64_t edges = begin[block_.num_rows] - begin[0];
    const std::int64_t edge =
        begin[0] + edges / pieces_ * piece + edges % pieces_ * piece / pieces_;
    return std::lower_bound(begin, begin + block_.num_rows, edge) - begin;
  }

  /// Calls body(piece, task) for groups of heads, one after the other, and all pieces of each.
  template <class Body>
  void run(int num_threads, const Body& body) const {
    for (std::int64_t head = 0; head < block_.num_heads; head += kSharingHeads) {
      const std::int64_t last = std::min(block_.num_heads, head + kSharingHeads);
      parallel_tasks(num_threads, pieces_, [&](std::int64_t piece) {
        body(piece, SharedTask{first(piece), first(piece + 1), head, last});
      });
    }
  }

 private:
  const AttentionBlock& block_;
  std::int64_t pieces_;
};

std::int64_t num_edges(const AttentionBlock& block) {
  return block.indptr[block.num_rows] - block.indptr[0];
}

int threads_of(const AttentionBlock& block) {
  const std::int64_t work = num_edges(block) * block.num_heads * block.head_width;
  return work < kSerialWork ? 1 : resolve_threads(block.num_threads);
}

/// A block with its dropout drawn; `problem` points into this object.
class Drawn {
 public:
  Drawn(const AttentionBlock& block, std::int64_t heads_per_word, int num_threads)
      : edges_(block, num_threads) {
    static_cast<AttentionProblem&>(problem_) = edges_.problem();
    problem_.source = block.source;
    problem_.heads_per_word = heads_per_word;
    if (block.weight_dropout.p == 0) return;
    for (std::int64_t head = 0; head < block.num_heads; head += heads_per_word) {
      const std::uint64_t word =
          block.weight_dropout.key + static_cast<std::uint64_t>(head) * kGolden;
      for (std::int64_t i = 0; i < block.num_rows; ++i)
        streams_.push_back(row_stream(word, block.row_ids[i]));
    }
    problem_.weights.streams = streams_.data();
  }

  const SharedProblem& problem() const { return problem_; }

 private:
  AttentionDropout edges_;
  std::vector<std::uint64_t> streams_;
  SharedProblem problem_{};
};

/// Ranges of columns with about equally many edges of the block.
std::vector<ColumnRange> column_ranges(const AttentionBlock& block, int count) {
  constexpr std::int64_t kBins = 4096;
  std::array<std::int64_t, kBins> edges{};
  const std::int64_t step = (block.num_columns + kBins - 1) / kBins;
  for (std::int64_t e = block.indptr[0]; e < block.indptr[block.num_rows]; ++e)
    ++edges[static_cast<std::size_t>(block.indices[e] / step)];
  std::vector<ColumnRange> ranges;
  std::int64_t seen = 0, first = 0;
  for (std::int64_t bin = 0; bin < kBins; ++bin) {
    seen += edges[static_cast<std::size_t>(bin)];
    const auto made = static_cast<std::int64_t>(ranges.size());
    if (made + 1 == count || seen * count < num_edges(block) * (made + 1)) continue;
    const std::int64_t last = std::min(block.num_columns, (bin + 1) * step);
    ranges.push_back({first, last});
    first = last;
  }
  ranges.push_back({first, block.num_columns});
  return ranges;
}

}  // namespace

void shared_forward(const AttentionBlock& block, const SharedMeans& means,
                    std::int64_t heads_per_word) {
  const int threads = threads_of(block);
  const Drawn drawn(block, heads_per_word, threads);
  const RowPieces pieces(block, num_edges(block) / kTaskEdges);
  pieces.run(threads, [&](std::int64_t, const SharedTask& task) {
    shared_kernels_of(block).forward(drawn.problem(), task, means);
  });
}

void shared_backward(const AttentionBlock& block, const SharedGradients& gradients,
                     std::int64_t heads_per_word) {
  if (num_edges(block) == 0) return;
  const int threads = threads_of(block);
  const Drawn drawn(block, heads_per_word, threads);
  const std::int64_t slice_bytes =
      block.num_columns * block.num_heads * storage_bytes(block.storage);
  const RowPieces slices(block, gradients.num_slices);
  slices.run(threads, [&](std::int64_t slice, const SharedTask& task) {
    char* const dsource = static_cast<char*>(gradients.dsource) + slice * slice_bytes;
    shared_kernels_of(block).backward_rows(drawn.problem(), task, gradients, dsource);
  });
  if (gradients.dx == nullptr) return;
  // Every row of dx has one writer, which adds its edges in order, for any number of threads.
  const std::vector<ColumnRange> ranges = threads == 1
                                              ? std::vector<ColumnRange>{{0, block.num_columns}}
                                              : column_ranges(block, threads);
  RowPieces(block, 1).run(1, [&](std::int64_t, const SharedTask& task) {
    parallel_tasks(threads, static_cast<std::int64_t>(ranges.size()), [&](std::int64_t range) {
      shared_kernels_of(block).backward_columns(drawn.problem(), task, gradients,
                                                ranges[static_cast<std::size_t>(range)]);
    });
  });
}

}  // namespace hpcgnn::kernels
