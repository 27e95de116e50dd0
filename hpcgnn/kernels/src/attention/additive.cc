#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/attention.h"
#include "attention/problem.h"
#include "attention/tasks.h"
#include "parallel.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

constexpr std::int64_t kMostSlices = 32;

/// Number of slices of edges that run in parallel. Each has its own sums for the gradient of
/// target, so the number depends only on the problem: these sums move less than a twentieth of the
/// bytes of grad.
std::int64_t num_slices(const AttentionBlock& block) {
  const std::int64_t read = block.num_nonzeros * block.head_width;
  const std::int64_t slices = read / (40 * std::max<std::int64_t>(1, block.num_rows));
  return std::clamp<std::int64_t>(slices, 1, std::min(kMostSlices, block.num_nonzeros));
}

/// The backward pass, one group of heads after the other.
template <class T>
class Backward {
 public:
  Backward(const AttentionBlock& block, const AdditiveGradients& gradients)
      : b_(block),
        g_(gradients),
        threads_(attention_threads(block)),
        group_(heads_in_group(block)),
        slices_(num_slices(block)),
        dropout_(block, threads_),
        kernel_(
            table_of<AdditiveTable>(block.isa).kernels[static_cast<int>(block.storage)].backward),
        step_(head_step(group_)),
        terms_(static_cast<std::size_t>(block.num_rows * kTerms * step_ + kOverread)),
        dtarget_(static_cast<std::size_t>(slices_ * block.num_rows * step_)),
        carry_dz_(static_cast<std::size_t>(slices_ * width())),
        carry_dsource_(static_cast<std::size_t>(slices_ * block.num_heads)),
        dweights_(gradients.weights == nullptr ? 0 : carry_dz_.size()) {}

  void run() {
    for (std::int64_t head = 0; head < b_.num_heads; head += group_) {
      const std::int64_t last = std::min(head + group_, b_.num_heads);
      collect_terms(head, last);
      std::fill(dtarget_.begin(), dtarget_.end(), T(0));
      parallel_tasks(threads_, slices_, [&](std::int64_t slice) { run_slice(slice, head, last); });
      add_dtarget(head, last);
    }
    for (std::int64_t slice = 1; slice < slices_; ++slice) add_carry(slice);
    for (std::size_t i = 0; i < dweights_.size(); ++i)
      static_cast<T*>(g_.dweights)[i % static_cast<std::size_t>(width())] += dweights_[i];
  }

 private:
  std::int64_t width() const { return b_.num_heads * b_.head_width; }
  std::int64_t first_edge(std::int64_t slice) const {
    const std::int64_t edge =
        b_.num_nonzeros / slices_ * slice + b_.num_nonzeros % slices_ * slice / slices_;
    if (!b_.whole_lines) return edge;
    return *std::lower_bound(b_.indptr, b_.indptr + b_.num_columns, edge);
  }
  std::int64_t state_row(std::int64_t i) const { return b_.rows ? b_.rows[i] : i; }

  /// Calls body(row of the block, head) for the heads of a group.
  template <class Body>
  void for_rows(std::int64_t first_head, std::int64_t last_head, const Body& body) const {
    for_each_row(b_.num_rows, threads_, [&](std::int64_t i) {
      for (std::int64_t head = first_head; head < last_head; ++head) body(i, head);
    });
  }

  void collect_terms(std::int64_t first_head, std::int64_t last_head) {
    for_rows(first_head, last_head, [&](std::int64_t i, std::int64_t head) {
      const std::int64_t at = state_row(i) * b_.num_heads + head;
      const T lse = static_cast<const T*>(g_.lse)[at];
      T* const terms = terms_.data() + i * kTerms * step_ + (head - first_head);
      terms[0] = static_cast<const T*>(b_.target)[at];
      // All edges of such a row were dropped: exp(e - inf) is 0, but exp(e + inf) is not.
      terms[step_] = std::isinf(lse) ? std::abs(lse) : lse;
      terms[2 * step_] = static_cast<const T*>(g_.delta)[at];
    });
  }

  void run_slice(std::int64_t slice, std::int64_t first_head, std::int64_t last_head) {
    const std::int64_t edge = first_edge(slice);
    kernel_(dropout_.problem(),
            {.first_head = first_head,
             .last_head = last_head,
             .first_edge = edge,
             .last_edge = first_edge(slice + 1),
             .first_line = line_of_edge(b_.indptr, b_.num_columns, edge),
             .group = group_},
            {.terms = terms_.data(),
             .grad = g_.grad,
             .dz = g_.dz,
             .dsource = g_.dsource,
             .carry_dz = carry_dz_.data() + slice * width(),
             .carry_dsource = carry_dsource_.data() + slice * b_.num_heads,
             .dtarget = dtarget_.data() + slice * b_.num_rows * step_,
             .weights = g_.weights,
             .dweights = dweights_.empty() ? nullptr : dweights_.data() + slice * width(),
             .dedges = g_.dedges,
             .rounded = g_.rounded});
  }

  void add_dtarget(std::int64_t first_head, std::int64_t last_head) {
    for_rows(first_head, last_head, [&](std::int64_t i, std::int64_t head) {
      T sum = 0;
      for (std::int64_t slice = 0; slice < slices_; ++slice)
        sum += dtarget_[static_cast<std::size_t>((slice * b_.num_rows + i) * step_ + head -
                                                 first_head)];
      static_cast<T*>(g_.dtarget)[state_row(i) * b_.num_heads + head] += sum;
    });
  }

  void add_carry(std::int64_t slice) {
    const std::int64_t edge = first_edge(slice);
    if (edge == b_.num_nonzeros) return;
    const std::int64_t j = line_of_edge(b_.indptr, b_.num_columns, edge);
    if (b_.indptr[j] == edge) return;
    T* const dz = g_.dz == nullptr ? nullptr : static_cast<T*>(g_.dz) + j * width();
    T* const dsource = static_cast<T*>(g_.dsource) + j * b_.num_heads;
    for (std::int64_t c = 0; g_.dz != nullptr && c < width(); ++c)
      dz[c] += carry_dz_[static_cast<std::size_t>(slice * width() + c)];
    for (std::int64_t head = 0; head < b_.num_heads; ++head)
      dsource[head] += carry_dsource_[static_cast<std::size_t>(slice * b_.num_heads + head)];
  }

  const AttentionBlock& b_;
  const AdditiveGradients& g_;
  int threads_;
  std::int64_t group_, slices_;
  AttentionDropout dropout_;
  void (*kernel_)(const AttentionProblem&, const AttentionTask&, const AdditiveSums&);
  std::int64_t step_;
  std::vector<T> terms_, dtarget_, carry_dz_, carry_dsource_, dweights_;
};

}  // namespace

void additive_backward(const AttentionBlock& block, const AdditiveGradients& gradients) {
  if (block.num_nonzeros == 0 || block.num_heads == 0) return;
  if (block.storage == Storage::kFloat64)
    Backward<double>(block, gradients).run();
  else
    Backward<float>(block, gradients).run();
}

namespace {

template <class T>
void run_forward(const AttentionBlock& block, const AttentionState& state) {
  const int threads = attention_threads(block);
  const AttentionDropout dropout(block, threads);
  const std::vector<T> source = groups_apart<T>(block.source, block.num_columns, block.num_heads,
                                                heads_in_group(block), threads);
  AttentionProblem problem = dropout.problem();
  problem.source = source.data();
  const auto kernel =
      table_of<AdditiveTable>(block.isa).kernels[static_cast<int>(block.storage)].forward;
  add_to_states<T>(problem, kernel, state, threads);
}

}  // namespace

void additive_forward(const AttentionBlock& block, const AttentionState& state) {
  if (block.num_nonzeros == 0 || block.num_heads == 0) return;
  if (block.storage == Storage::kFloat64)
    run_forward<double>(block, state);
  else
    run_forward<float>(block, state);
}

}  // namespace hpcgnn::kernels
