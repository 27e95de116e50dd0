#include "attention_bindings.h"

namespace hpcgnn::kernels {
namespace {

using namespace nb::literals;

/// The block of GAT, where source and target have one column for each head.
AttentionBlock checked_layer(const Operands& operands, std::int64_t num_rows,
                             const AnyMatrix& source, double slope, int threads,
                             const std::string& half, const std::string& isa) {
  const std::int64_t heads = extent(source, 1);
  AttentionBlock block = checked_block(operands, num_rows, heads, slope, threads, half, isa);
  const Storage sums = accumulator_of(block.storage);
  require_shape(source, block.num_columns, heads, sums,
                "source must have one row for each row of z");
  require_shape(operands.target, block.num_targets, heads, sums,
                "target must have one column for each head");
  block.source = source.data();
  return block;
}

void py_forward(const Offsets& indptr, const Indices& indices, const AnyMatrix& z,
                const AnyMatrix& source, const AnyMatrix& target, OutMatrix& top, OutMatrix& total,
                OutMatrix& out, double slope, const std::optional<Indices>& rows,
                const std::optional<Dropout>& dropout, int threads, const std::string& half,
                const std::string& isa) {
  const AttentionBlock block =
      checked_layer({indptr, indices, z, target, rows, dropout}, checked_rows(indptr, indices),
                    source, slope, threads, half, isa);
  const Storage sums = accumulator_of(block.storage);
  const std::int64_t targets = block.num_targets, heads = block.num_heads;
  require_shape(top, targets, heads, sums, "top must have the shape of target");
  require_shape(total, targets, heads, sums, "total must have the shape of target");
  require_shape(out, targets, heads * block.head_width, sums,
                "out must have one row for each row of target, and the columns of z");
  nb::gil_scoped_release unlocked;
  check_indptr(block.indptr, block.num_rows, block.num_nonzeros);
  attention_forward(block, {top.data(), total.data(), out.data()});
}

void py_backward(const Offsets& indptr, const Indices& indices, const AnyMatrix& z,
                 const AnyMatrix& source, const AnyMatrix& target, const AnyMatrix& lse,
                 const AnyMatrix& grad, const AnyMatrix& delta, OutMatrix& dz, OutMatrix& dsource,
                 OutMatrix& dtarget, double slope, const std::optional<Indices>& rows,
                 const std::optional<AnyMatrix>& weights, std::optional<OutMatrix> dweights,
                 const std::optional<Dropout>& dropout, int threads, const std::string& half,
                 const std::string& isa) {
  const std::int64_t num_rows = rows ? extent(*rows, 0) : extent(target, 0);
  const AttentionBlock block = checked_layer({indptr, indices, z, target, rows, dropout}, num_rows,
                                             source, slope, threads, half, isa);
  require(checked_rows(indptr, indices) == block.num_columns,
          "indptr must be that of the transpose: one row for each row of z");
  const Storage sums = accumulator_of(block.storage);
  const std::int64_t targets = block.num_targets, heads = block.num_heads,
                     width = heads * block.head_width;
  require_shape(lse, targets, heads, sums, "lse must have the shape of target");
  require_shape(delta, targets, heads, sums, "delta must have the shape of target");
  require_shape(dtarget, targets, heads, sums, "dtarget must have the shape of target");
  require_shape(dsource, block.num_columns, heads, sums, "dsource must have the shape of source");
  require_shape(dz, block.num_columns, width, sums, "dz must have the shape of z");
  require_shape(grad, targets, width, sums,
                "grad must have one row for each row of target, and the columns of z");
  require(weights.has_value() == dweights.has_value(),
          "weights and dweights must be given together");
  if (weights) {
    require_shape(*weights, heads, block.head_width, sums,
                  "weights must have one row for each head, and the columns of a head");
    require_shape(*dweights, heads, block.head_width, sums,
                  "dweights must have the shape of weights");
  }
  nb::gil_scoped_release unlocked;
  check_indptr(block.indptr, block.num_columns, block.num_nonzeros);
  // An index out of range would be written to: worth a pass over the indices.
  check_range("indices", block.indices, block.num_nonzeros, num_rows);
  attention_backward(block, {.lse = lse.data(),
                             .grad = grad.data(),
                             .delta = delta.data(),
                             .dz = dz.data(),
                             .dsource = dsource.data(),
                             .dtarget = dtarget.data(),
                             .weights = weights ? weights->data() : nullptr,
                             .dweights = dweights ? dweights->data() : nullptr});
}

template <class T>
StateShape checked_shape(const Matrix<T>& top, const Matrix<T>& total, const Matrix<T>& out) {
  const std::int64_t num_rows = extent(top, 0), heads = extent(top, 1);
  require(heads > 0 && extent(out, 1) % heads == 0,
          "out must have equally many columns for each head of top");
  require(extent(total, 0) == num_rows && extent(total, 1) == heads && extent(out, 0) == num_rows,
          "top, total and out must have one row for each row of the state");
  return {num_rows, heads, extent(out, 1) / heads};
}

template <class T>
void py_merge(const std::optional<Indices>& rows, const Matrix<const T>& other_top,
              const Matrix<const T>& other_total, const Matrix<const T>& other_out, Matrix<T>& top,
              Matrix<T>& total, Matrix<T>& out, int threads) {
  const StateShape shape = checked_shape(top, total, out);
  const StateShape other = checked_shape(other_top, other_total, other_out);
  require(other.num_heads == shape.num_heads && other.head_width == shape.head_width,
          "both states must have the same heads and columns");
  require(rows || other.num_rows == shape.num_rows, "both states must have the same rows");
  const std::int32_t* const subset = checked_subset(rows, other.num_rows, shape.num_rows);
  nb::gil_scoped_release unlocked;
  const auto unchanged = [](const T* p) { return const_cast<T*>(p); };
  merge_states<T>(
      {top.data(), total.data(), out.data()},
      {unchanged(other_top.data()), unchanged(other_total.data()), unchanged(other_out.data())},
      subset, other, threads);
}

template <class T>
using Pitched = nb::ndarray<T, nb::numpy, nb::ndim<2>, nb::device::cpu>;

template <class T>
Rows<T> checked_pitch(const Pitched<T>& rows) {
  require(extent(rows, 0) == 0 || extent(rows, 1) < 2 || rows.stride(1) == 1,
          "columns must lie side by side");
  return {rows.data(), rows.stride(0)};
}

template <class T>
void py_finish(Matrix<T>& top, const Matrix<T>& total, Matrix<T>& out,
               const std::optional<Pitched<T>>& into, const std::optional<Vector<const T>>& bias,
               int threads) {
  const StateShape shape = checked_shape(top, total, out);
  const std::int64_t width = extent(out, 1);
  require(!into || (extent(*into, 0) == shape.num_rows && extent(*into, 1) == width),
          "into must have the shape of out");
  require(!bias || extent(*bias, 0) == width, "bias must have one entry for each column of out");
  const Rows<T> result = into ? checked_pitch<T>(*into) : Rows<T>{out.data(), width};
  nb::gil_scoped_release unlocked;
  finish_states<T>({top.data(), total.data(), out.data()}, shape, result,
                   bias ? bias->data() : nullptr, threads);
}

template <class T>
void py_delta(const Pitched<const T>& grad, const Pitched<const T>& out,
              const std::optional<Vector<const T>>& bias, Matrix<T>& delta,
              const std::optional<Matrix<T>>& copy, int threads) {
  const std::int64_t num_rows = extent(delta, 0), heads = extent(delta, 1), width = extent(out, 1);
  require(heads > 0 && width % heads == 0, "out must have equally many columns for each head");
  require(extent(grad, 0) == num_rows && extent(out, 0) == num_rows && extent(grad, 1) == width,
          "grad and out must have the same shape, and the rows of delta");
  require(!bias || extent(*bias, 0) == width, "bias must have one entry for each column of out");
  require(!copy || (extent(*copy, 0) == num_rows && extent(*copy, 1) == width),
          "copy must have the shape of grad");
  const Rows<const T> gradients = checked_pitch<const T>(grad),
                      results = checked_pitch<const T>(out);
  nb::gil_scoped_release unlocked;
  inner_products_of_heads<T>(gradients, results, bias ? bias->data() : nullptr,
                             {num_rows, heads, width / heads}, delta.data(),
                             copy ? copy->data() : nullptr, threads);
}

void py_scores(const AnyMatrix& z, const AnyMatrix& weights, OutMatrix& source, int threads,
               const std::string& half) {
  const Storage storage = storage_of(z.dtype(), half), sums = accumulator_of(storage);
  const StateShape shape{extent(z, 0), extent(weights, 0), extent(weights, 1)};
  require(extent(z, 1) == shape.num_heads * shape.head_width,
          "weights must have one row for each head, and the columns of a head");
  require_shape(weights, shape.num_heads, shape.head_width, sums, "weights");
  require_shape(source, shape.num_rows, shape.num_heads, sums,
                "source must have one row for each row of z, and one column for each head");
  nb::gil_scoped_release unlocked;
  const auto run = [&]<class T, class X>() {
    scores_of_heads(static_cast<const X*>(z.data()), static_cast<const T*>(weights.data()), shape,
                    static_cast<T*>(source.data()), threads);
  };
  if (storage == Storage::kFloat32) run.template operator()<float, float>();
  if (storage == Storage::kFloat64) run.template operator()<double, double>();
  if (storage == Storage::kBFloat16) run.template operator()<float, BFloat16>();
  if (storage == Storage::kFloat16) run.template operator()<float, Float16>();
}

template <class T>
void bind_states(nb::module_& m) {
  m.def("attention_merge", &py_merge<T>, "rows"_a.noconvert().none(), "other_top"_a.noconvert(),
        "other_total"_a.noconvert(), "other_out"_a.noconvert(), "top"_a.noconvert(),
        "total"_a.noconvert(), "out"_a.noconvert(), "threads"_a);
  m.def("attention_finish", &py_finish<T>, "top"_a.noconvert(), "total"_a.noconvert(),
        "out"_a.noconvert(), "into"_a.noconvert().none(), "bias"_a.noconvert().none(), "threads"_a);
  m.def("attention_delta", &py_delta<T>, "grad"_a.noconvert(), "out"_a.noconvert(),
        "bias"_a.noconvert().none(), "delta"_a.noconvert(), "copy"_a.noconvert().none(),
        "threads"_a);
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("attention_forward", &py_forward, "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "z"_a.noconvert(), "source"_a.noconvert(), "target"_a.noconvert(), "top"_a.noconvert(),
        "total"_a.noconvert(), "out"_a.noconvert(), "slope"_a, "rows"_a.noconvert().none(),
        "dropout"_a.none(), "threads"_a, "half"_a, "isa"_a,
        nb::sig("def attention_forward(indptr: NDArray[numpy.int64], "
                "indices: NDArray[numpy.int32], z: NDArray[typing.Any], "
                "source: NDArray[typing.Any], target: NDArray[typing.Any], "
                "top: NDArray[typing.Any], total: NDArray[typing.Any], "
                "out: NDArray[typing.Any], slope: float, rows: NDArray[numpy.int32] | None, "
                "dropout: tuple[int, float, NDArray[numpy.int64], NDArray[numpy.int64], int, "
                "float] | None, threads: int, half: str, isa: str) -> None"));
  m.def("attention_backward", &py_backward, "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "z"_a.noconvert(), "source"_a.noconvert(), "target"_a.noconvert(), "lse"_a.noconvert(),
        "grad"_a.noconvert(), "delta"_a.noconvert(), "dz"_a.noconvert(), "dsource"_a.noconvert(),
        "dtarget"_a.noconvert(), "slope"_a, "rows"_a.noconvert().none(),
        "weights"_a.noconvert().none(), "dweights"_a.noconvert().none(), "dropout"_a.none(),
        "threads"_a, "half"_a, "isa"_a,
        nb::sig("def attention_backward(indptr: NDArray[numpy.int64], "
                "indices: NDArray[numpy.int32], z: NDArray[typing.Any], "
                "source: NDArray[typing.Any], target: NDArray[typing.Any], "
                "lse: NDArray[typing.Any], grad: NDArray[typing.Any], "
                "delta: NDArray[typing.Any], dz: NDArray[typing.Any], "
                "dsource: NDArray[typing.Any], dtarget: NDArray[typing.Any], slope: float, "
                "rows: NDArray[numpy.int32] | None, weights: NDArray[typing.Any] | None, "
                "dweights: NDArray[typing.Any] | None, "
                "dropout: tuple[int, float, NDArray[numpy.int64], NDArray[numpy.int64], int, "
                "float] | None, threads: int, half: str, isa: str) -> None"));
  m.def("attention_scores", &py_scores, "z"_a.noconvert(), "weights"_a.noconvert(),
        "source"_a.noconvert(), "threads"_a, "half"_a,
        nb::sig("def attention_scores(z: NDArray[typing.Any], weights: NDArray[typing.Any], "
                "source: NDArray[typing.Any], threads: int, half: str) -> None"));
  bind_states<float>(m);
  bind_states<double>(m);
}

}  // namespace hpcgnn::kernels
