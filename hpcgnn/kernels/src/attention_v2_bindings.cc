#include "attention_bindings.h"
#include "attention_v2.h"

namespace hpcgnn::kernels {
namespace {

using namespace nb::literals;

/// The block of GATv2, where target is as wide as z and vector holds a row for each head.
AttentionBlock checked_layer(const Operands& operands, std::int64_t num_rows,
                             const AnyMatrix& vector, double slope, int threads,
                             const std::string& half, const std::string& isa) {
  const std::int64_t heads = extent(vector, 0);
  AttentionBlock block = checked_block(operands, num_rows, heads, slope, threads, half, isa);
  const Storage sums = accumulator_of(block.storage);
  require_shape(vector, heads, block.head_width, sums,
                "vector must have one row for each head, and the columns of a head");
  require_shape(operands.target, block.num_targets, heads * block.head_width, sums,
                "target must have the columns of z");
  block.source = vector.data();
  return block;
}

void py_forward(const Offsets& indptr, const Indices& indices, const AnyMatrix& z,
                const AnyMatrix& target, const AnyMatrix& vector, OutMatrix& top, OutMatrix& total,
                OutMatrix& out, double slope, const std::optional<Indices>& rows,
                const std::optional<Dropout>& dropout, int threads, const std::string& half,
                const std::string& isa) {
  const AttentionBlock block =
      checked_layer({indptr, indices, z, target, rows, dropout}, checked_rows(indptr, indices),
                    vector, slope, threads, half, isa);
  const Storage sums = accumulator_of(block.storage);
  const std::int64_t targets = block.num_targets, heads = block.num_heads;
  require_shape(top, targets, heads, sums, "top must have a row for each row of target");
  require_shape(total, targets, heads, sums, "total must have a row for each row of target");
  require_shape(out, targets, heads * block.head_width, sums, "out must have the shape of target");
  nb::gil_scoped_release unlocked;
  check_indptr(block.indptr, block.num_rows, block.num_nonzeros);
  attention_v2_forward(block, {top.data(), total.data(), out.data()});
}

AttentionV2Gradients checked_gradients(const AttentionBlock& block, const AnyMatrix& lse,
                                       const AnyMatrix& grad, const AnyMatrix& delta) {
  const Storage sums = accumulator_of(block.storage);
  const std::int64_t targets = block.num_targets, heads = block.num_heads;
  require_shape(lse, targets, heads, sums, "lse must have a row for each row of target");
  require_shape(delta, targets, heads, sums, "delta must have a row for each row of target");
  require_shape(grad, targets, heads * block.head_width, sums,
                "grad must have the shape of target");
  return {.lse = lse.data(),
          .grad = grad.data(),
          .delta = delta.data(),
          .dz = nullptr,
          .dtarget = nullptr,
          .dvector = nullptr};
}

void py_backward_rows(const Offsets& indptr, const Indices& indices, const AnyMatrix& z,
                      const AnyMatrix& target, const AnyMatrix& vector, const AnyMatrix& lse,
                      const AnyMatrix& grad, const AnyMatrix& delta, OutMatrix& dtarget,
                      OutMatrix& dvector, double slope, const std::optional<Indices>& rows,
                      const std::optional<Dropout>& dropout, int threads, const std::string& half,
                      const std::string& isa) {
  const AttentionBlock block =
      checked_layer({indptr, indices, z, target, rows, dropout}, checked_rows(indptr, indices),
                    vector, slope, threads, half, isa);
  AttentionV2Gradients gradients = checked_gradients(block, lse, grad, delta);
  const Storage sums = accumulator_of(block.storage);
  require_shape(dtarget, block.num_targets, block.num_heads * block.head_width, sums,
                "dtarget must have the shape of target");
  require_shape(dvector, block.num_heads, block.head_width, sums,
                "dvector must have the shape of vector");
  gradients.dtarget = dtarget.data();
  gradients.dvector = dvector.data();
  nb::gil_scoped_release unlocked;
  check_indptr(block.indptr, block.num_rows, block.num_nonzeros);
  attention_v2_backward_rows(block, gradients);
}

void py_backward_columns(const Offsets& indptr, const Indices& indices, const AnyMatrix& z,
                         const AnyMatrix& target, const AnyMatrix& vector, const AnyMatrix& lse,
                         const AnyMatrix& grad, const AnyMatrix& delta, OutMatrix& dz, double slope,
                         const std::optional<Indices>& rows, const std::optional<Dropout>& dropout,
                         int threads, const std::string& half, const std::string& isa) {
  const std::int64_t num_rows = rows ? extent(*rows, 0) : extent(target, 0);
  const AttentionBlock block = checked_layer({indptr, indices, z, target, rows, dropout}, num_rows,
                                             vector, slope, threads, half, isa);
  require(checked_rows(indptr, indices) == block.num_columns,
          "indptr must be that of the transpose: one row for each row of z");
  AttentionV2Gradients gradients = checked_gradients(block, lse, grad, delta);
  require_shape(dz, block.num_columns, block.num_heads * block.head_width,
                accumulator_of(block.storage), "dz must have the shape of z");
  gradients.dz = dz.data();
  nb::gil_scoped_release unlocked;
  check_indptr(block.indptr, block.num_columns, block.num_nonzeros);
  attention_v2_backward_columns(block, gradients);
}

#define HPCGNN_V2_OPERANDS                                                                \
  "indptr: NDArray[numpy.int64], indices: NDArray[numpy.int32], z: NDArray[typing.Any], " \
  "target: NDArray[typing.Any], vector: NDArray[typing.Any], "
#define HPCGNN_V2_OPTIONS                                                                     \
  "slope: float, rows: NDArray[numpy.int32] | None, dropout: tuple[int, float, "              \
  "NDArray[numpy.int64], NDArray[numpy.int64], int, float] | None, threads: int, half: str, " \
  "isa: str) -> None"
#define HPCGNN_V2_GIVEN \
  "lse: NDArray[typing.Any], grad: NDArray[typing.Any], delta: NDArray[typing.Any], "

}  // namespace

void bind_attention_v2(nb::module_& m) {
  m.def("attention_v2_forward", &py_forward, "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "z"_a.noconvert(), "target"_a.noconvert(), "vector"_a.noconvert(), "top"_a.noconvert(),
        "total"_a.noconvert(), "out"_a.noconvert(), "slope"_a, "rows"_a.noconvert().none(),
        "dropout"_a.none(), "threads"_a, "half"_a, "isa"_a,
        nb::sig("def attention_v2_forward(" HPCGNN_V2_OPERANDS
                "top: NDArray[typing.Any], total: NDArray[typing.Any], "
                "out: NDArray[typing.Any], " HPCGNN_V2_OPTIONS));
  m.def("attention_v2_backward_rows", &py_backward_rows, "indptr"_a.noconvert(),
        "indices"_a.noconvert(), "z"_a.noconvert(), "target"_a.noconvert(), "vector"_a.noconvert(),
        "lse"_a.noconvert(), "grad"_a.noconvert(), "delta"_a.noconvert(), "dtarget"_a.noconvert(),
        "dvector"_a.noconvert(), "slope"_a, "rows"_a.noconvert().none(), "dropout"_a.none(),
        "threads"_a, "half"_a, "isa"_a,
        nb::sig("def attention_v2_backward_rows(" HPCGNN_V2_OPERANDS HPCGNN_V2_GIVEN
                "dtarget: NDArray[typing.Any], dvector: NDArray[typing.Any], " HPCGNN_V2_OPTIONS));
  m.def("attention_v2_backward_columns", &py_backward_columns, "indptr"_a.noconvert(),
        "indices"_a.noconvert(), "z"_a.noconvert(), "target"_a.noconvert(), "vector"_a.noconvert(),
        "lse"_a.noconvert(), "grad"_a.noconvert(), "delta"_a.noconvert(), "dz"_a.noconvert(),
        "slope"_a, "rows"_a.noconvert().none(), "dropout"_a.none(), "threads"_a, "half"_a, "isa"_a,
        nb::sig("def attention_v2_backward_columns(" HPCGNN_V2_OPERANDS HPCGNN_V2_GIVEN
                "dz: NDArray[typing.Any], " HPCGNN_V2_OPTIONS));
}

}  // namespace hpcgnn::kernels
