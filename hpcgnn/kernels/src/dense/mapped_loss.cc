#include "dense/mapped_loss.h"

#include <algorithm>

#include "dense/pieces.h"
#include "dense/products.h"
#include "dense/widened.h"

namespace hpcgnn::kernels {
namespace {

/// Numbers of a block's rows and logits, which stay in cache; and whole tiles of rows.
constexpr std::int64_t kBlockNumbers = 1 << 13, kLeastRows = 48, kMostRows = 192;
/// The least rows of a piece that one thread takes.
constexpr std::int64_t kThreadRows = 1 << 10;

template <class T>
T* shifted(T* data, std::int64_t elements) {
  return data ? data + elements : nullptr;
}

/// What both losses share: the loss of the rows from `first` on, whose logits its gradient
/// replaces.
template <class T, class Loss>
Loss shift(Loss loss, std::int64_t first, T* logits) {
  loss.targets.logits = loss.gradient.out = logits;
  loss.losses = static_cast<T*>(loss.losses) + first;
  loss.gradient.factors = shifted(static_cast<const T*>(loss.gradient.factors), first);
  return loss;
}

template <class T>
SoftmaxLoss from_row(const SoftmaxLoss& loss, std::int64_t first, T* logits) {
  SoftmaxLoss part = shift(loss, first, logits);
  part.targets.labels += first;
  return part;
}

template <class T>
SigmoidLoss from_row(const SigmoidLoss& loss, std::int64_t first, T* logits) {
  SigmoidLoss part = shift(loss, first, logits);
  part.targets.targets = static_cast<const T*>(part.targets.targets) + first * part.targets.width;
  return part;
}

auto kernel_of(const SoftmaxLoss&, const RowsTable& table, Storage storage) {
  return table.softmax_loss.loss[static_cast<int>(storage)];
}

auto kernel_of(const SigmoidLoss&, const RowsTable& table, Storage storage) {
  return table.sigmoid_loss.loss[static_cast<int>(storage)];
}

/// The steps of a block, for sums of type T.
template <class T, class Loss>
class Steps {
 public:
  Steps(const LogitMap& map, const Loss& loss, const LogitMapGradients& gradients)
      : m_(map),
        loss_(loss),
        gradients_(gradients),
        sums_(accumulator_of(map.storage)),
        forward_(pack({map.weight, map.inner, map.width, 1, map.inner}, sums_, map.isa)),
        backward_(pack({map.weight, map.width, map.inner, map.inner, 1}, sums_, map.isa)),
        block_(std::clamp(kBlockNumbers / (map.inner + map.width + 1) / kLeastRows * kLeastRows,
                          kLeastRows, kMostRows)) {}

  /// Numbers of the sums of a piece of rows: those of the weight, and those of the bias behind.
  std::int64_t size() const { return m_.width * (m_.inner + 1); }

  void run(std::int64_t first, std::int64_t last, T* sums) const {
    const Widened rows(m_.storage, m_.isa, m_.inner, block_);
    const Widened for_rows(m_.storage, m_.isa, m_.inner, block_);
    const Buffer logits(block_ * m_.width * bytes()), columns(m_.width * bytes());
    for (std::int64_t start = first; start < last; start += block_) {
      const std::int64_t count = std::min(block_, last - start);
      const Block block{rows.load(m_.rows, start, count), static_cast<T*>(logits.get()), count};
      multiply({.rows = block.rows,
                .panels = forward_.get(),
                .from = m_.bias,
                .out = block.logits,
                .num_rows = count,
                .inner = m_.inner,
                .columns = m_.width,
                .repeats = true,
                .ahead = rows.at(m_.rows, start + count),
                .ahead_row_bytes = rows.row_bytes()});
      kernel_of(loss_, table_of<RowsTable>(m_.isa), sums_)(from_row(loss_, start, block.logits), 0,
                                                           count);
      add_weight(block, sums);
      if (gradients_.bias)
        add_bias(block, static_cast<T*>(columns.get()), sums + m_.width * m_.inner);
      if (!gradients_.rows) continue;
      multiply({.rows = block.logits,
                .panels = backward_.get(),
                .from = nullptr,
                .out = for_rows.room(gradients_.rows, start),
                .num_rows = count,
                .inner = m_.width,
                .columns = m_.inner});
      for_rows.store(gradients_.rows, start, count);
    }
  }

  void write(const T* sums) const {
    T* const weight = static_cast<T*>(gradients_.weight);
    for (std::int64_t i = 0; i < m_.width; ++i)
      for (std::int64_t j = 0; j < m_.inner; ++j)
        weight[i * m_.inner + j] = is_turned() ? sums[j * m_.width + i] : sums[i * m_.inner + j];
    if (gradients_.bias)
      std::copy_n(sums + m_.width * m_.inner, m_.width, static_cast<T*>(gradients_.bias));
  }

 private:
  struct Block {
    const void* rows;
    T* logits;  ///< or their gradient
    std::int64_t count;
  };

  static constexpr std::int64_t bytes() { return static_cast<std::int64_t>(sizeof(T)); }

  int place() const { return sums_ == Storage::kFloat64 ? 1 : 0; }

  /// Contractions are faster with the narrower operand on the right.
  bool is_turned() const { return m_.width < m_.inner; }

  void multiply(const MultiplyArguments& a) const {
    // The rows of a task are read again for each panel.
    for (std::int64_t i = 0; i < a.num_rows; i += kLeastRows)
      table_of<ProductsTable>(m_.isa).multiply[place()](a, i, std::min(a.num_rows, i + kLeastRows));
  }

  void add_weight(const Block& block, T* sums) const {
    ContractArguments a{block.logits, block.rows, sums, block.count, m_.width, m_.inner, m_.inner};
    if (is_turned())
      a = {block.rows, block.logits, sums, block.count, m_.inner, m_.width, m_.width};
    table_of<ProductsTable>(m_.isa).contract[place()](a, 0, a.width);
  }

  void add_bias(const Block& block, T* columns, T* sums) const {
    const EpilogueGradient a{.gradient = block.logits,
                             .result = nullptr,
                             .out = nullptr,
                             .sums = columns,
                             .num_rows = block.count,
                             .width = m_.width,
                             .scale = 1,
                             .storage = sums_,
                             .num_threads = 1,
                             .isa = m_.isa};
    table_of<RowsTable>(m_.isa).epilogue.gradient[static_cast<int>(sums_)](a, 0, block.count,
                                                                           columns);
    for (std::int64_t k = 0; k < m_.width; ++k) sums[k] += columns[k];
  }

  const LogitMap& m_;
  const Loss& loss_;
  const LogitMapGradients& gradients_;
  Storage sums_;
  Buffer forward_, backward_;
  std::int64_t block_;
};

template <class T, class Loss>
void run(const LogitMap& map, const Loss& loss, const LogitMapGradients& gradients) {
  const Steps<T, Loss> steps(map, loss, gradients);
  const Buffer total(steps.size() * static_cast<std::int64_t>(sizeof(T)));
  T* const sums = static_cast<T*>(total.get());
  std::fill_n(sums, steps.size(), T(0));
  const bool is_small = 2 * map.num_rows * steps.size() < kSerialOperations;
  add_by_pieces(
      Pieces{map.num_rows, kThreadRows, steps.size()},
      is_small ? 1 : resolve_threads(map.num_threads), sums,
      [&](std::int64_t first, std::int64_t last, T* own) { steps.run(first, last, own); });
  steps.write(sums);
}

template <class Loss>
void run(const LogitMap& map, const Loss& loss, const LogitMapGradients& gradients) {
  if (accumulator_of(map.storage) == Storage::kFloat64)
    run<double>(map, loss, gradients);
  else
    run<float>(map, loss, gradients);
}

}  // namespace

void mapped_loss(const LogitMap& map, const SoftmaxLoss& loss, const LogitMapGradients& gradients) {
  run(map, loss, gradients);
}

void mapped_loss(const LogitMap& map, const SigmoidLoss& loss, const LogitMapGradients& gradients) {
  run(map, loss, gradients);
}

}  // namespace hpcgnn::kernels
