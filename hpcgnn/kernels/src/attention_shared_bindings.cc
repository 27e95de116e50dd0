#include "attention_bindings.h"
#include "attention_shared.h"

namespace hpcgnn::kernels {
namespace {

using namespace nb::literals;

using AnyCube = nb::ndarray<nb::ro, nb::numpy, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using OutCube = nb::ndarray<nb::numpy, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

struct SharedOperands {
  const Offsets& indptr;
  const Indices& indices;
  const AnyMatrix& x;
  const AnyMatrix& source;
  const AnyMatrix& target;
  const std::optional<Dropout>& dropout;
};

/// Offsets of some rows of a pattern: they may begin and end anywhere inside of the indices.
std::int64_t checked_part(const Offsets& indptr, const Indices& indices) {
  require(extent(indptr, 0) > 0, "indptr must not be empty");
  const std::int64_t num_rows = extent(indptr, 0) - 1;
  const std::int64_t* const at = indptr.data();
  require(at[0] >= 0 && at[num_rows] <= extent(indices, 0), "indptr must lie inside of indices");
  for (std::int64_t i = 0; i < num_rows; ++i)
    require(at[i] <= at[i + 1], "indptr must not decrease");
  return num_rows;
}

AttentionBlock checked_layer(const SharedOperands& operands, double slope, int threads,
                             const std::string& isa) {
  const std::int64_t num_rows = checked_part(operands.indptr, operands.indices);
  const std::int64_t heads = extent(operands.source, 1);
  const Storage storage = storage_of(operands.x.dtype(), "");
  require(heads > 0 && extent(operands.x, 1) > 0, "there must be a head and a column");
  require_shape(operands.source, extent(operands.x, 0), heads, storage,
                "source must have one row for each row of x");
  require_shape(operands.target, num_rows, heads, storage,
                "target must have a row for each row of the block, and the columns of source");
  AttentionBlock block{.indptr = operands.indptr.data(),
                       .indices = operands.indices.data(),
                       .rows = nullptr,
                       .row_ids = nullptr,
                       .column_ids = nullptr,
                       .z = operands.x.data(),
                       .source = operands.source.data(),
                       .target = operands.target.data(),
                       .num_rows = num_rows,
                       .num_columns = extent(operands.x, 0),
                       .num_nonzeros = extent(operands.indices, 0),
                       .num_targets = num_rows,
                       .num_heads = heads,
                       .head_width = extent(operands.x, 1),
                       .weight_dropout = {0, 0},
                       .edge_dropout = {0, 0},
                       .slope = slope,
                       .storage = storage,
                       .num_threads = threads,
                       .isa = parse_isa(isa)};
  take_dropout(operands.dropout, block);
  const std::int64_t first = block.indptr[0];
  check_range("indices", block.indices + first, block.indptr[num_rows] - first, block.num_columns);
  return block;
}

void require_cube(const auto& array, const AttentionBlock& block, std::int64_t pitch,
                  const char* message) {
  if (storage_of(array.dtype(), "") != block.storage) throw nb::type_error(message);
  require(extent(array, 0) == block.num_rows && extent(array, 1) == block.num_heads &&
              extent(array, 2) == pitch && pitch >= block.head_width,
          message);
}

void py_forward(const Offsets& indptr, const Indices& indices, const AnyMatrix& x,
                const AnyMatrix& source, const AnyMatrix& target, OutCube& mean, OutMatrix& lse,
                double slope, const std::optional<Dropout>& dropout, std::int64_t heads_per_word,
                int threads, const std::string& isa) {
  const AttentionBlock block =
      checked_layer({indptr, indices, x, source, target, dropout}, slope, threads, isa);
  const std::int64_t pitch = extent(mean, 2);
  require_cube(mean, block, pitch, "mean must have a row for each row and head, as wide as x");
  require_shape(lse, block.num_rows, block.num_heads, block.storage,
                "lse must have the shape of target");
  require(heads_per_word > 0, "heads_per_word must be positive");
  nb::gil_scoped_release unlocked;
  attention_shared_forward(block, {mean.data(), lse.data(), pitch}, heads_per_word);
}

void py_backward(const Offsets& indptr, const Indices& indices, const AnyMatrix& x,
                 const AnyMatrix& source, const AnyMatrix& target, const AnyCube& mean,
                 const AnyMatrix& lse, const AnyCube& grad, std::optional<OutMatrix> dx,
                 OutCube& dsource, OutMatrix& dtarget, double slope,
                 const std::optional<Dropout>& dropout, std::int64_t heads_per_word, int threads,
                 const std::string& isa) {
  const AttentionBlock block =
      checked_layer({indptr, indices, x, source, target, dropout}, slope, threads, isa);
  const std::int64_t pitch = extent(mean, 2), rows = block.num_rows, heads = block.num_heads;
  require_cube(mean, block, pitch, "mean must have a row for each row and head, as wide as x");
  require_cube(grad, block, pitch, "grad must have the shape of mean");
  require_shape(lse, rows, heads, block.storage, "lse must have the shape of target");
  require_shape(dtarget, rows, heads, block.storage, "dtarget must have the shape of target");
  if (dx)
    require_shape(*dx, block.num_columns, block.head_width, block.storage,
                  "dx must have the shape of x");
  require(storage_of(dsource.dtype(), "") == block.storage && extent(dsource, 0) > 0 &&
              extent(dsource, 1) == block.num_columns && extent(dsource, 2) == heads,
          "dsource must hold slices of the shape of source");
  require(heads_per_word > 0, "heads_per_word must be positive");
  nb::gil_scoped_release unlocked;
  const SharedMeans means{const_cast<void*>(mean.data()), const_cast<void*>(lse.data()), pitch};
  attention_shared_backward(block,
                            {.means = means,
                             .grad = grad.data(),
                             .dx = dx ? dx->data() : nullptr,
                             .dsource = dsource.data(),
                             .dtarget = dtarget.data(),
                             .num_slices = extent(dsource, 0)},
                            heads_per_word);
}

#define HPCGNN_SHARED_OPERANDS                                                            \
  "indptr: NDArray[numpy.int64], indices: NDArray[numpy.int32], x: NDArray[typing.Any], " \
  "source: NDArray[typing.Any], target: NDArray[typing.Any], "
#define HPCGNN_SHARED_OPTIONS                                                             \
  "slope: float, dropout: tuple[int, float, NDArray[numpy.int64], NDArray[numpy.int64], " \
  "int, float] | None, heads_per_word: int, threads: int, isa: str) -> None"

}  // namespace

void bind_attention_shared(nb::module_& m) {
  m.def("attention_shared_forward", &py_forward, "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "x"_a.noconvert(), "source"_a.noconvert(), "target"_a.noconvert(), "mean"_a.noconvert(),
        "lse"_a.noconvert(), "slope"_a, "dropout"_a.none(), "heads_per_word"_a, "threads"_a,
        "isa"_a,
        nb::sig("def attention_shared_forward(" HPCGNN_SHARED_OPERANDS
                "mean: NDArray[typing.Any], lse: NDArray[typing.Any], " HPCGNN_SHARED_OPTIONS));
  m.def("attention_shared_backward", &py_backward, "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "x"_a.noconvert(), "source"_a.noconvert(), "target"_a.noconvert(), "mean"_a.noconvert(),
        "lse"_a.noconvert(), "grad"_a.noconvert(), "dx"_a.noconvert().none(),
        "dsource"_a.noconvert(), "dtarget"_a.noconvert(), "slope"_a, "dropout"_a.none(),
        "heads_per_word"_a, "threads"_a, "isa"_a,
        nb::sig("def attention_shared_backward(" HPCGNN_SHARED_OPERANDS
                "mean: NDArray[typing.Any], lse: NDArray[typing.Any], grad: NDArray[typing.Any], "
                "dx: NDArray[typing.Any] | None, dsource: NDArray[typing.Any], "
                "dtarget: NDArray[typing.Any], " HPCGNN_SHARED_OPTIONS));
}

}  // namespace hpcgnn::kernels
