#include "bindings.h"

#include <optional>
#include <string>

#include "attention/attention.h"
#include "attention/shared.h"
#include "pattern/pattern.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

using AnyCube = nb::ndarray<nb::ro, nb::numpy, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using OutCube = nb::ndarray<nb::numpy, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

/// A field of a value of hpcgnn/kernels/operands.py; `shown` is its name in messages. The caller
/// holds the value, and so the arrays that a block points to.
template <class T>
T field(nb::handle value, const char* name, const char* shown = nullptr) {
  return take<T>(nb::object(value.attr(name)), shown == nullptr ? name : shown);
}

/// The shape of an operand, and its type, that of sums.
struct Shape {
  std::int64_t num_rows, num_columns;
  Storage storage;
};

void require_shape(const char* name, const auto& array, const Shape& shape, const char* message) {
  require_sums_of(name, array, shape.storage);
  require(extent(array, 0) == shape.num_rows && extent(array, 1) == shape.num_columns, message);
}

/// The data of a matrix that is read, a field of a value of operands.py.
const void* matrix_of(nb::handle value, const char* name, const Shape& shape, const char* message) {
  const auto array = field<AnyMatrix>(value, name);
  require_shape(name, array, shape, message);
  return array.data();
}

void* written_matrix_of(nb::handle value, const char* name, const char* shown, const Shape& shape,
                        const char* message) {
  const auto array = field<OutMatrix>(value, name, shown);
  require_shape(shown, array, shape, message);
  return array.data();
}

/// The arguments of every attention kernel, from Python.
struct Call {
  nb::handle block, score, draw;
  int threads;
  const std::string& half;
  const std::string& isa;
};

void take_draw(nb::handle draw, AttentionBlock& block) {
  if (draw.is_none()) return;
  const nb::object edges = draw.attr("edges");
  const auto row_ids = field<Offsets>(draw, "row_ids");
  const auto column_ids = field<Offsets>(draw, "column_ids");
  block.weight_dropout = {field<Word>(edges, "weight_word").bits, field<double>(edges, "weight_p")};
  block.edge_dropout = {field<Word>(edges, "edge_word").bits, field<double>(edges, "edge_p")};
  const auto probability = [](double p) { return p >= 0 && p <= 1; };
  require(probability(block.weight_dropout.p) && probability(block.edge_dropout.p),
          "p must be in [0, 1]");
  require(extent(row_ids, 0) == block.num_rows, "row_ids must have one entry for each row");
  require(extent(column_ids, 0) == block.num_columns,
          "column_ids must have one entry for each column");
  block.row_ids = row_ids.data();
  block.column_ids = column_ids.data();
}

/// A block without `source`.
/// @param num_rows rows of the block, even if its pattern is passed as the transpose.
AttentionBlock block_of(const Call& call, std::int64_t num_rows, std::int64_t heads,
                        std::int64_t head_width) {
  const auto values = field<AnyMatrix>(call.score, "values", "z");
  const auto target = field<AnyMatrix>(call.score, "target");
  const auto indices = field<Indices>(call.block, "indices");
  const auto rows = field<std::optional<Indices>>(call.block, "rows");
  AttentionBlock block{.indptr = field<Offsets>(call.block, "indptr").data(),
                       .indices = indices.data(),
                       .rows = checked_subset(rows, num_rows, extent(target, 0)),
                       .row_ids = nullptr,
                       .column_ids = nullptr,
                       .values = values.data(),
                       .source = nullptr,
                       .target = target.data(),
                       .edges = nullptr,
                       .keyed = false,
                       .whole_lines = field<bool>(call.block, "whole_lines"),
                       .num_rows = num_rows,
                       .num_columns = extent(values, 0),
                       .num_nonzeros = extent(indices, 0),
                       .num_targets = extent(target, 0),
                       .num_heads = heads,
                       .head_width = head_width,
                       .weight_dropout = {0, 0},
                       .edge_dropout = {0, 0},
                       .slope = field<double>(call.score, "slope"),
                       .storage = storage_of(values.dtype(), call.half),
                       .num_threads = call.threads,
                       .isa = parse_isa(call.isa)};
  require(rows || block.num_targets == num_rows,
          "target must have one row for each row of the block");
  take_draw(call.draw, block);
  return block;
}

/// Whether a pattern is passed by rows, or by columns, as its transpose.
enum class Walk : std::uint8_t { kRows, kColumns };

std::int64_t rows_of(const Call& call, Walk walk) {
  if (walk == Walk::kRows)
    return checked_rows(field<Offsets>(call.block, "indptr"),
                        field<Indices>(call.block, "indices"));
  const auto rows = field<std::optional<Indices>>(call.block, "rows");
  return rows ? extent(*rows, 0) : extent(field<AnyMatrix>(call.score, "target"), 0);
}

std::int64_t head_width_of(const Call& call, std::int64_t heads, bool keyed = false) {
  const std::int64_t width = extent(field<AnyMatrix>(call.score, "values", "z"), 1);
  const std::int64_t parts = keyed ? 2 * heads : heads;
  require(heads > 0, "there must be a head");
  require(width > 0 && width % parts == 0, "z must have equally many columns for each head");
  return width / parts;
}

void check_walk(const Call& call, const AttentionBlock& block, Walk walk) {
  if (walk == Walk::kColumns)
    require(checked_rows(field<Offsets>(call.block, "indptr"),
                         field<Indices>(call.block, "indices")) == block.num_columns,
            "indptr must be that of the transpose: one row for each row of z");
}

/// The block of GAT, where source and target have one column for each head.
AttentionBlock additive_block(const Call& call, Walk walk) {
  const auto source = field<AnyMatrix>(call.score, "source");
  const std::int64_t heads = extent(source, 1);
  AttentionBlock block = block_of(call, rows_of(call, walk), heads, head_width_of(call, heads));
  const Storage sums = accumulator_of(block.storage);
  require_shape("source", source, {block.num_columns, heads, sums},
                "source must have one row for each row of z");
  matrix_of(call.score, "target", {block.num_targets, heads, sums},
            "target must have one column for each head");
  block.source = source.data();
  if (!call.score.attr("edges").is_none())
    block.edges = matrix_of(call.score, "edges", {block.num_nonzeros, heads, sums},
                            "edges must have a row for each edge, and a column for each head");
  check_walk(call, block, walk);
  return block;
}

/// The block of GATv2, where target is as wide as z and vector holds a row for each head.
AttentionBlock dynamic_block(const Call& call, Walk walk) {
  const std::int64_t heads = extent(field<AnyMatrix>(call.score, "vector"), 0);
  const bool keyed = field<bool>(call.score, "keyed");
  AttentionBlock block =
      block_of(call, rows_of(call, walk), heads, head_width_of(call, heads, keyed));
  block.keyed = keyed;
  const Storage sums = accumulator_of(block.storage);
  block.source = matrix_of(call.score, "vector", {heads, block.head_width, sums},
                           "vector must have one row for each head, and the columns of a head");
  matrix_of(call.score, "target", {block.num_targets, heads * block.head_width, sums},
            "target must have the columns of z");
  check_walk(call, block, walk);
  return block;
}

/// The block of products: z holds a key and a value for each head, and target is half as wide.
AttentionBlock product_block(const Call& call, Walk walk) {
  const auto heads = field<std::int64_t>(call.score, "heads");
  AttentionBlock block =
      block_of(call, rows_of(call, walk), heads, head_width_of(call, heads, true));
  block.keyed = true;
  matrix_of(call.score, "target",
            {block.num_targets, heads * block.head_width, accumulator_of(block.storage)},
            "target must have the columns of the keys");
  check_walk(call, block, walk);
  return block;
}

using MakeBlock = AttentionBlock (*)(const Call&, Walk);
using Forward = void (*)(const AttentionBlock&, const AttentionState&);

template <MakeBlock kMakeBlock, Forward kForward>
void py_forward(nb::handle edges, nb::handle score, nb::handle state, nb::handle draw,
                const std::string& half, int threads, const std::string& isa) {
  const AttentionBlock block = kMakeBlock({edges, score, draw, threads, half, isa}, Walk::kRows);
  const Storage sums = accumulator_of(block.storage);
  const std::int64_t targets = block.num_targets, heads = block.num_heads;
  // A target of additive scores has the shape of top, one of dynamic scores that of out.
  const bool narrow = kMakeBlock == additive_block;
  const char* const top =
      narrow ? "top must have the shape of target" : "top must have a row for each row of target";
  const char* const total = narrow ? "total must have the shape of target"
                                   : "total must have a row for each row of target";
  const char* const out = narrow
                              ? "out must have one row for each row of target, and the columns of z"
                              : "out must have the shape of target";
  const AttentionState into{
      written_matrix_of(state, "top", "top", {targets, heads, sums}, top),
      written_matrix_of(state, "total", "total", {targets, heads, sums}, total),
      written_matrix_of(state, "out", "out", {targets, heads * block.head_width, sums}, out)};
  nb::gil_scoped_release unlocked;
  check_indptr(block.indptr, block.num_rows, block.num_nonzeros);
  kForward(block, into);
}

/// Fill in the saved arrays by row, which both kinds of gradients have.
void take_saved(nb::handle saved, const AttentionBlock& block, auto& into) {
  const Storage sums = accumulator_of(block.storage);
  const std::int64_t targets = block.num_targets, heads = block.num_heads;
  into.lse =
      matrix_of(saved, "lse", {targets, heads, sums}, "lse must have a row for each row of target");
  into.grad = matrix_of(saved, "grad", {targets, heads * block.head_width, sums},
                        "grad must have one row for each row of target, and the columns of z");
  into.delta = matrix_of(saved, "delta", {targets, heads, sums},
                         "delta must have a row for each row of target");
}

/// Take sums of rounded numbers in place of gradients of `width` columns; false: there are none.
bool take_rounding(nb::handle gradients, const AttentionBlock& block, std::int64_t width,
                   AttentionSums& into) {
  const nb::object rounding = gradients.attr("rounding");
  if (rounding.is_none()) return false;
  require(block.whole_lines && block.storage == accumulator_of(block.storage),
          "only scores of whole lines round what edges add");
  const auto scale = field<nb::ndarray<const double, nb::ndim<1>, nb::c_contig>>(rounding, "scale");
  require(extent(scale, 0) == width, "scale must have a number for each column");
  into.digits = nb::cast<int>(rounding.attr("digits"));
  into.bits = nb::cast<int>(rounding.attr("bits"));
  require(into.digits > 0 && into.bits > 0 && into.bits < 32, "digits have 1 to 31 bits");
  into.sums = static_cast<double*>(written_matrix_of(
      gradients, "values", "sums", {block.num_columns, width * into.digits, Storage::kFloat64},
      "sums must have all columns for each digit"));
  into.scale = scale.data();
  into.width = width;
  return true;
}

void py_additive_backward(nb::handle transposed, nb::handle score, nb::handle saved,
                          nb::handle gradients, nb::handle draw, const std::string& half,
                          int threads, const std::string& isa) {
  const AttentionBlock block =
      additive_block({transposed, score, draw, threads, half, isa}, Walk::kColumns);
  const Storage sums = accumulator_of(block.storage);
  const std::int64_t columns = block.num_columns, heads = block.num_heads;
  AdditiveGradients into{};
  take_saved(saved, block, into);
  const bool chained = !score.attr("weights").is_none();
  const bool rounds =
      !chained && take_rounding(gradients, block, heads * (block.head_width + 1), into.rounded);
  if (chained || (!rounds && !gradients.attr("values").is_none()))
    into.dz =
        written_matrix_of(gradients, "values", "dz", {columns, heads * block.head_width, sums},
                          "dz must have the shape of z");
  into.dsource = written_matrix_of(gradients, "source", "dsource", {columns, heads, sums},
                                   "dsource must have the shape of source");
  into.dtarget =
      written_matrix_of(gradients, "targets", "dtarget", {block.num_targets, heads, sums},
                        "dtarget must have the shape of target");
  require(chained == !gradients.attr("weights").is_none(),
          "weights and dweights must be given together");
  if (chained) {
    into.weights = matrix_of(score, "weights", {heads, block.head_width, sums},
                             "weights must have one row for each head, and the columns of a head");
    into.dweights =
        written_matrix_of(gradients, "weights", "dweights", {heads, block.head_width, sums},
                          "dweights must have the shape of weights");
  }
  require((block.edges == nullptr) == gradients.attr("edges").is_none(),
          "edges and dedges must be given together");
  if (block.edges != nullptr)
    into.dedges = written_matrix_of(gradients, "edges", "dedges", {block.num_nonzeros, heads, sums},
                                    "dedges must have the shape of edges");
  nb::gil_scoped_release unlocked;
  check_indptr(block.indptr, columns, block.num_nonzeros);
  // An index out of range would cause a stray write, so the indices are worth a check.
  check_range("indices", block.indices, block.num_nonzeros, block.num_rows);
  additive_backward(block, into);
}

template <MakeBlock kMakeBlock>
void py_dynamic_backward(nb::handle transposed, nb::handle score, nb::handle saved,
                         nb::handle gradients, nb::handle draw, const std::string& half,
                         int threads, const std::string& isa) {
  const AttentionBlock block =
      kMakeBlock({transposed, score, draw, threads, half, isa}, Walk::kColumns);
  DynamicGradients into{};
  take_saved(saved, block, into);
  const std::int64_t width = block.num_heads * block.head_width * (block.keyed ? 2 : 1);
  if (!take_rounding(gradients, block, width, into.rounded))
    into.dz = written_matrix_of(gradients, "values", "dz",
                                {block.num_columns, width, accumulator_of(block.storage)},
                                "dz must have the shape of z");
  nb::gil_scoped_release unlocked;
  check_indptr(block.indptr, block.num_columns, block.num_nonzeros);
  dynamic_backward_columns(block, into);
}

template <MakeBlock kMakeBlock>
void py_dynamic_backward_rows(nb::handle edges, nb::handle score, nb::handle saved,
                              nb::handle gradients, nb::handle draw, const std::string& half,
                              int threads, const std::string& isa) {
  const AttentionBlock block = kMakeBlock({edges, score, draw, threads, half, isa}, Walk::kRows);
  const Storage sums = accumulator_of(block.storage);
  const std::int64_t heads = block.num_heads, width = block.head_width;
  DynamicGradients into{};
  take_saved(saved, block, into);
  into.dtarget =
      written_matrix_of(gradients, "targets", "dtarget", {block.num_targets, heads * width, sums},
                        "dtarget must have the shape of target");
  if (block.source != nullptr)
    into.dvector = written_matrix_of(
        gradients, "weights", "dvector",
        block.whole_lines ? Shape{block.num_rows, heads * width, sums} : Shape{heads, width, sums},
        "dvector must have the shape of vector, or a row for each row of whole ones");
  nb::gil_scoped_release unlocked;
  check_indptr(block.indptr, block.num_rows, block.num_nonzeros);
  dynamic_backward_rows(block, into);
}

/// Check the offsets of some rows of a pattern, which may begin and end anywhere in the indices.
std::int64_t checked_part(const Offsets& indptr, const Indices& indices) {
  require(extent(indptr, 0) > 0, "indptr must not be empty");
  const std::int64_t num_rows = extent(indptr, 0) - 1;
  const std::int64_t* const at = indptr.data();
  require(at[0] >= 0 && at[num_rows] <= extent(indices, 0), "indptr must lie inside of indices");
  for (std::int64_t i = 0; i < num_rows; ++i)
    require(at[i] <= at[i + 1], "indptr must not decrease");
  return num_rows;
}

AttentionBlock shared_block(const Call& call) {
  const std::int64_t num_rows =
      checked_part(field<Offsets>(call.block, "indptr"), field<Indices>(call.block, "indices"));
  const auto x = field<AnyMatrix>(call.score, "values", "x");
  const auto source = field<AnyMatrix>(call.score, "source");
  const std::int64_t heads = extent(source, 1);
  require(heads > 0 && extent(x, 1) > 0, "there must be a head and a column");
  const Storage storage = wide_storage_of("x", x.dtype());
  require_shape("source", source, {extent(x, 0), heads, storage},
                "source must have one row for each row of x");
  matrix_of(call.score, "target", {num_rows, heads, storage},
            "target must have a row for each row of the block, and the columns of source");
  AttentionBlock block = block_of(call, num_rows, heads, extent(x, 1));
  block.source = source.data();
  const std::int64_t first = block.indptr[0];
  check_range("indices", block.indices + first, block.indptr[num_rows] - first, block.num_columns);
  return block;
}

std::int64_t heads_per_word(nb::handle draw, const AttentionBlock& block) {
  const std::int64_t count = draw.is_none() ? 0 : field<std::int64_t>(draw, "heads_per_word");
  require(count >= 0, "heads_per_word must be positive");
  return count == 0 ? block.num_heads : count;
}

template <class Cube>
Cube checked_cube(nb::handle value, const char* name, const AttentionBlock& block,
                  std::int64_t pitch, const char* message) {
  Cube array = field<Cube>(value, name);
  if (!has_sums_of(array, block.storage)) throw nb::type_error(message);
  require(extent(array, 0) == block.num_rows && extent(array, 1) == block.num_heads &&
              extent(array, 2) == pitch && pitch >= block.head_width,
          message);
  return array;
}

SharedMeans means_of(nb::handle means, const AttentionBlock& block) {
  const std::int64_t pitch = extent(field<AnyCube>(means, "mean"), 2);
  // The backward pass reads both, and they may be read-only.
  const void* const mean = checked_cube<AnyCube>(means, "mean", block, pitch,
                                                 "mean must have a row for each row and head, as "
                                                 "wide as x")
                               .data();
  const void* const lse = matrix_of(means, "lse", {block.num_rows, block.num_heads, block.storage},
                                    "lse must have the shape of target");
  return {const_cast<void*>(mean), const_cast<void*>(lse), pitch};
}

void py_shared_forward(nb::handle edges, nb::handle score, nb::handle means, nb::handle draw,
                       int threads, const std::string& isa) {
  const AttentionBlock block = shared_block({edges, score, draw, threads, "", isa});
  const SharedMeans into = means_of(means, block);
  const std::int64_t per_word = heads_per_word(draw, block);
  nb::gil_scoped_release unlocked;
  shared_forward(block, into, per_word);
}

void py_shared_backward(nb::handle edges, nb::handle score, nb::handle means, nb::handle gradients,
                        nb::handle draw, int threads, const std::string& isa) {
  const AttentionBlock block = shared_block({edges, score, draw, threads, "", isa});
  const SharedMeans result = means_of(means, block);
  const std::int64_t heads = block.num_heads;
  const auto grad =
      checked_cube<AnyCube>(means, "grad", block, result.pitch, "grad must have the shape of mean");
  const auto dsource = field<OutCube>(gradients, "source", "dsource");
  require(has_sums_of(dsource, block.storage) && extent(dsource, 0) > 0 &&
              extent(dsource, 1) == block.num_columns && extent(dsource, 2) == heads,
          "dsource must hold slices of the shape of source");
  void* const dx = gradients.attr("values").is_none()
                       ? nullptr
                       : written_matrix_of(gradients, "values", "dx",
                                           {block.num_columns, block.head_width, block.storage},
                                           "dx must have the shape of x");
  const SharedGradients into{.means = result,
                             .grad = grad.data(),
                             .dx = dx,
                             .dsource = dsource.data(),
                             .dtarget = written_matrix_of(gradients, "targets", "dtarget",
                                                          {block.num_rows, heads, block.storage},
                                                          "dtarget must have the shape of target"),
                             .num_slices = extent(dsource, 0)};
  const std::int64_t per_word = heads_per_word(draw, block);
  nb::gil_scoped_release unlocked;
  shared_backward(block, into, per_word);
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
Rows<T> checked_pitch(const Pitched<T>& rows) {
  return {rows.data(), row_pitch(rows)};
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
  require_shape("weights", weights, {shape.num_heads, shape.head_width, sums}, "weights");
  require_shape("source", source, {shape.num_rows, shape.num_heads, sums},
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

}  // namespace

void bind_attention(nb::module_& m) {
  const auto forward = [&](const char* name, auto* function) {
    define(m, name, function, {"block", "score", "state", "draw", "half", "threads", "isa"});
  };
  forward("additive_forward", &py_forward<additive_block, additive_forward>);
  forward("dynamic_forward", &py_forward<dynamic_block, dynamic_forward>);
  forward("product_forward", &py_forward<product_block, dynamic_forward>);
  const auto backward = [&](const char* name, auto* function) {
    define(m, name, function,
           {"block", "score", "saved", "gradients", "draw", "half", "threads", "isa"});
  };
  backward("additive_backward", &py_additive_backward);
  backward("dynamic_backward", &py_dynamic_backward<dynamic_block>);
  backward("dynamic_backward_rows", &py_dynamic_backward_rows<dynamic_block>);
  backward("product_backward", &py_dynamic_backward<product_block>);
  backward("product_backward_rows", &py_dynamic_backward_rows<product_block>);
  define(m, "shared_forward", &py_shared_forward,
         {"block", "score", "means", "draw", "threads", "isa"});
  define(m, "shared_backward", &py_shared_backward,
         {"block", "score", "means", "gradients", "draw", "threads", "isa"});
  define(m, "attention_scores", &py_scores, {"z", "weights", "source", "threads", "half"});
  define_by_dtype(
      m, "attention_merge", &py_merge<float>, &py_merge<double>,
      {"rows", "other_top", "other_total", "other_out", "top", "total", "out", "threads"}, 6);
  define_by_dtype(m, "attention_finish", &py_finish<float>, &py_finish<double>,
                  {"top", "total", "out", "into", "bias", "threads"}, 2);
  define_by_dtype(m, "attention_delta", &py_delta<float>, &py_delta<double>,
                  {"grad", "out", "bias", "delta", "copy", "threads"}, 1);
}

}  // namespace hpcgnn::kernels
