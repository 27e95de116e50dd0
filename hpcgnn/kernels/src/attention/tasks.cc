#include "attention/tasks.h"

#include <algorithm>

#include "parallel.h"
#include "random_bits.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

constexpr std::int64_t kGroupBytes = 256;
// Enough edges to hide the cost of partial sums, few enough to balance many threads; fixed, so that
// the order of summation does not depend on the number of threads.
constexpr std::int64_t kChunkEdges = 8192;

std::vector<std::uint64_t> streams_of(const AttentionBlock& block, const EdgeDropout& dropout,
                                      int num_threads) {
  std::vector<std::uint64_t> streams(static_cast<std::size_t>(dropout.p == 0 ? 0 : block.num_rows));
  for_each_row(static_cast<std::int64_t>(streams.size()), num_threads, [&](std::int64_t i) {
    streams[static_cast<std::size_t>(i)] = row_stream(dropout.key, block.row_ids[i]);
  });
  return streams;
}

DropoutBits bits_of(const std::vector<std::uint64_t>& streams, const EdgeDropout& dropout) {
  return {dropout.p == 0 ? nullptr : streams.data(), drop_threshold(dropout.p)};
}

}  // namespace

AttentionDropout::AttentionDropout(const AttentionBlock& block, int num_threads)
    : block_(block),
      weight_streams_(streams_of(block, block.weight_dropout, num_threads)),
      edge_streams_(streams_of(block, block.edge_dropout, num_threads)) {}

AttentionProblem AttentionDropout::problem() const {
  return {.block = &block_,
          .source = nullptr,
          .weights = bits_of(weight_streams_, block_.weight_dropout),
          .edges = bits_of(edge_streams_, block_.edge_dropout)};
}

template <class T>
std::vector<T> groups_apart(const void* source, std::int64_t num_columns, std::int64_t num_heads,
                            std::int64_t group, int num_threads) {
  const std::int64_t step = head_step(group), groups = (num_heads + group - 1) / group;
  std::vector<T> result(static_cast<std::size_t>(groups * num_columns * step + kOverread));
  const T* const from = static_cast<const T*>(source);
  for_each_row(num_columns, num_threads, [&](std::int64_t j) {
    for (std::int64_t head = 0; head < num_heads; ++head)
      result[static_cast<std::size_t>((head / group * num_columns + j) * step + head % group)] =
          from[j * num_heads + head];
  });
  return result;
}

template std::vector<float> groups_apart(const void*, std::int64_t, std::int64_t, std::int64_t,
                                         int);
template std::vector<double> groups_apart(const void*, std::int64_t, std::int64_t, std::int64_t,
                                          int);

std::int64_t heads_in_group(const AttentionBlock& block) {
  const std::int64_t bytes = block.head_width * storage_bytes(block.storage);
  const std::int64_t lanes =
      register_bytes(block.isa) / storage_bytes(accumulator_of(block.storage));
  const std::int64_t most =
      std::clamp<std::int64_t>(kGroupBytes / bytes, 1, std::min(lanes, block.num_heads));
  // Groups of about equal size.
  const std::int64_t groups = (block.num_heads + most - 1) / most;
  return (block.num_heads + groups - 1) / groups;
}

int attention_threads(const AttentionBlock& block) {
  const std::int64_t work = block.num_nonzeros * block.num_heads * block.head_width;
  return work < kSerialWork ? 1 : resolve_threads(block.num_threads);
}

std::int64_t line_of_edge(const std::int64_t* indptr, std::int64_t num_lines, std::int64_t edge) {
  return std::upper_bound(indptr, indptr + num_lines + 1, edge) - indptr - 1;
}

EdgeChunks::EdgeChunks(const AttentionBlock& block, std::int64_t num_lines)
    : block_(block),
      lines_(num_lines),
      chunks_((block.num_nonzeros + kChunkEdges - 1) / kChunkEdges),
      group_(heads_in_group(block)),
      groups_((block.num_heads + group_ - 1) / group_) {}

std::int64_t EdgeChunks::first_edge(std::int64_t chunk) const {
  const std::int64_t edge = std::min(chunk * kChunkEdges, block_.num_nonzeros);
  if (!block_.whole_lines) return edge;
  return *std::lower_bound(block_.indptr, block_.indptr + lines_, edge);
}

AttentionTask EdgeChunks::task(std::int64_t index) const {
  const std::int64_t edge = first_edge(chunk_of(index)), head = index / chunks_ * group_;
  return {.first_head = head,
          .last_head = std::min(head + group_, block_.num_heads),
          .first_edge = edge,
          .last_edge = first_edge(chunk_of(index) + 1),
          .first_line = line_of_edge(block_.indptr, lines_, edge),
          .group = group_};
}

std::int64_t EdgeChunks::cut_line(std::int64_t chunk) const {
  const std::int64_t edge = first_edge(chunk);
  if (edge == block_.num_nonzeros) return -1;
  const std::int64_t line = line_of_edge(block_.indptr, lines_, edge);
  return block_.indptr[line] < edge ? line : -1;
}

}  // namespace hpcgnn::kernels
