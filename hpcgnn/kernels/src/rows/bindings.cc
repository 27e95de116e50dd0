#include "bindings.h"

#include <optional>

#include "dense/mapped_loss.h"
#include "pattern/pattern.h"
#include "rows/dots.h"
#include "rows/epilogue.h"
#include "rows/integers.h"
#include "rows/losses.h"
#include "rows/quantised.h"
#include "rows/rows.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

const std::string kAnyHalf = "bfloat16";

RowsArguments rows_arguments(const AnyMatrix& source, const std::int32_t* rows,
                             std::int64_t num_rows, OutMatrix& out, int threads,
                             const std::string& half, const std::string& isa) {
  // A plain copy works for any bits.
  const bool copied = source.dtype() == out.dtype() && out.dtype() == nb::dtype<std::int32_t>();
  const RowsArguments arguments{
      .source = source.data(),
      .rows = rows,
      .out = out.data(),
      .num_rows = num_rows,
      .num_out_rows = extent(out, 0),
      .width = extent(source, 1),
      .source_storage = copied ? Storage::kFloat32 : storage_or_int32(source.dtype(), half),
      .out_storage = copied ? Storage::kFloat32 : storage_of(out.dtype(), half),
      .num_threads = threads,
      .isa = parse_isa(isa)};
  if (!rows_supports(arguments.source_storage, arguments.out_storage))
    throw nb::type_error(
        "out must have the dtype of its source, float32 beside a 16-bit type, or float64 beside "
        "int32");
  require(extent(out, 1) == arguments.width, "out must have as many columns as its source");
  return arguments;
}

void py_gather_rows(const AnyMatrix& x, const std::optional<Indices>& rows, OutMatrix& out,
                    int threads, const std::string& half, const std::string& isa) {
  const std::string& kind = half.empty() && x.dtype() == out.dtype() ? kAnyHalf : half;
  const RowsArguments arguments =
      rows_arguments(x, rows ? rows->data() : nullptr, extent(out, 0), out, threads, kind, isa);
  require((rows ? extent(*rows, 0) : extent(x, 0)) == arguments.num_rows,
          "out must have one row for each gathered row");
  if (rows) check_range("rows", rows->data(), arguments.num_rows, extent(x, 0));
  nb::gil_scoped_release unlocked;
  if (rows && arguments.source_storage == arguments.out_storage)
    gather_rows(arguments.source, arguments.rows, arguments.num_rows,
                arguments.width * storage_bytes(arguments.source_storage), arguments.out, threads);
  else
    convert_rows(arguments);
}

void py_scatter_add_rows(const AnyMatrix& src, const Indices& rows, OutMatrix& out, int threads,
                         const std::string& half, const std::string& isa) {
  const RowsArguments arguments =
      rows_arguments(src, rows.data(), extent(rows, 0), out, threads, half, isa);
  if (out.dtype() == nb::dtype<std::int32_t>()) throw nb::type_error("out must not be int32");
  require(extent(src, 0) == arguments.num_rows, "src must have one row for each entry of rows");
  check_range("rows", rows.data(), arguments.num_rows, arguments.num_out_rows);
  nb::gil_scoped_release unlocked;
  scatter_add_rows(arguments);
}

void py_row_dots(const AnyMatrix& queries, const AnyMatrix& x,
                 const Matrix<const std::int32_t>& rows, OutMatrix& out, int threads,
                 const std::string& isa) {
  const RowDots arguments{.queries = queries.data(),
                          .x = x.data(),
                          .rows = rows.data(),
                          .out = out.data(),
                          .num_queries = extent(rows, 0),
                          .count = extent(rows, 1),
                          .width = extent(x, 1),
                          .storage = wide_storage_of("x", x.dtype()),
                          .num_threads = threads,
                          .isa = parse_isa(isa)};
  if (queries.dtype() != x.dtype() || out.dtype() != x.dtype())
    throw nb::type_error("queries and out must have the dtype of x");
  require(extent(queries, 1) == arguments.width, "queries must have as many columns as x");
  require(extent(queries, 0) == arguments.num_queries, "rows must have a row for each query");
  require(extent(out, 0) == arguments.num_queries && extent(out, 1) == arguments.count,
          "out must have the shape of rows");
  check_range("rows", rows.data(), arguments.num_queries * arguments.count, extent(x, 0));
  nb::gil_scoped_release unlocked;
  row_dots(arguments);
}

/// The storage type of rows that are computed in float32.
Storage single_storage_of(nb::dlpack::dtype dtype, const std::string& half) {
  const Storage storage = storage_of(dtype, half);
  if (storage == Storage::kFloat64) throw nb::type_error("integers have no form of float64 rows");
  return storage;
}

void py_integers(const AnyMatrix& x, Matrix<std::int8_t>& out, Vector<float>& scales,
                 bool by_column, int threads, const std::string& half, const std::string& isa) {
  const Integers arguments{.x = x.data(),
                           .out = out.data(),
                           .scales = scales.data(),
                           .num_rows = extent(x, 0),
                           .width = extent(x, 1),
                           .storage = single_storage_of(x.dtype(), half),
                           .num_threads = threads,
                           .isa = parse_isa(isa)};
  require(extent(out, 0) == arguments.num_rows && extent(out, 1) == arguments.width,
          "out must have the shape of x");
  require(extent(scales, 0) == (by_column ? arguments.width : arguments.num_rows),
          "scales must have one entry for each row or column");
  nb::gil_scoped_release unlocked;
  (by_column ? integer_columns : integer_rows)(arguments);
}

void py_scale_sums(const Matrix<const std::int32_t>& sums, const Vector<const float>& row_scales,
                   const Vector<const float>& column_scales,
                   const std::optional<Vector<const float>>& bias, OutMatrix& out, bool accumulate,
                   int threads, const std::string& half, const std::string& isa) {
  const IntegerSums arguments{.sums = sums.data(),
                              .row_scales = row_scales.data(),
                              .column_scales = column_scales.data(),
                              .bias = bias ? bias->data() : nullptr,
                              .out = out.data(),
                              .accumulate = accumulate,
                              .num_rows = extent(sums, 0),
                              .width = extent(sums, 1),
                              .storage = single_storage_of(out.dtype(), half),
                              .num_threads = threads,
                              .isa = parse_isa(isa)};
  require(extent(row_scales, 0) == arguments.num_rows, "row_scales must have one entry a row");
  require(
      extent(column_scales, 0) == arguments.width && (!bias || extent(*bias, 0) == arguments.width),
      "column_scales and bias must have one entry a column");
  require(extent(out, 0) == arguments.num_rows && extent(out, 1) == arguments.width,
          "out must have the shape of sums");
  nb::gil_scoped_release unlocked;
  scale_sums(arguments);
}

void py_transpose_rows(const AnyMatrix& x, OutMatrix& out, int threads) {
  storage_of(x.dtype(), kAnyHalf);
  if (x.dtype() != out.dtype()) throw nb::type_error("out must have the dtype of x");
  require(extent(out, 0) == extent(x, 1) && extent(out, 1) == extent(x, 0),
          "out must have a row for each column of x, and a column for each row");
  nb::gil_scoped_release unlocked;
  transpose_rows(x.data(), extent(x, 0), extent(x, 1), x.dtype().bits / 8, out.data(), threads);
}

/// The data of an array that must have the shape and the dtype of another; null for none.
template <class Array>
auto matching(const char* name, std::optional<Array>& array, const AnyMatrix& like) {
  using Data = decltype(array->data());
  if (!array) return Data(nullptr);
  if (array->dtype() != like.dtype())
    throw nb::type_error(
        (std::string(name) + " must be " + dtype_text(like.dtype()) + ", as the rows are").c_str());
  if (extent(*array, 0) != extent(like, 0) || extent(*array, 1) != extent(like, 1))
    throw std::invalid_argument(std::string(name) + " must have the shape of the rows");
  return array->data();
}

/// The data of a vector with one accumulator for each column; null for none.
template <class Array>
auto by_column(const char* name, std::optional<Array>& array, const AnyMatrix& rows,
               Storage storage) {
  using Data = decltype(array->data());
  if (!array) return Data(nullptr);
  if (!has_sums_of(*array, storage) || extent(*array, 0) != extent(rows, 1))
    throw std::invalid_argument(std::string(name) +
                                " must have a number a column, float64 where rows have it, else "
                                "float32");
  return array->data();
}

void py_finish_rows(const AnyMatrix& x, std::optional<AnyVector> bias,
                    const std::optional<Offsets>& row_ids, Word key, double p, bool rectify,
                    OutMatrix& out, int threads, const std::string& half, const std::string& isa) {
  std::optional<OutMatrix> result(out);
  const Storage storage = storage_of(x.dtype(), half);
  const EpilogueArguments arguments{.source = x.data(),
                                    .bias = by_column("bias", bias, x, storage),
                                    .row_ids = row_ids ? row_ids->data() : nullptr,
                                    .out = matching("out", result, x),
                                    .num_rows = extent(x, 0),
                                    .width = extent(x, 1),
                                    .key = key.bits,
                                    .p = p,
                                    .rectify = rectify,
                                    .storage = storage,
                                    .num_threads = threads,
                                    .isa = parse_isa(isa)};
  require(!row_ids || extent(*row_ids, 0) == arguments.num_rows,
          "row_ids must have one entry for each row of x");
  require(p >= 0.0 && p <= 1.0, "p must be in [0, 1]");
  nb::gil_scoped_release unlocked;
  finish_rows(arguments);
}

void py_finish_rows_gradient(const AnyMatrix& gradient, std::optional<AnyMatrix> result,
                             double scale, std::optional<OutMatrix> out,
                             std::optional<OutVector> sums, int threads, const std::string& half,
                             const std::string& isa) {
  const Storage storage = storage_of(gradient.dtype(), half);
  const EpilogueGradient arguments{.gradient = gradient.data(),
                                   .result = matching("result", result, gradient),
                                   .out = matching("out", out, gradient),
                                   .sums = by_column("sums", sums, gradient, storage),
                                   .num_rows = extent(gradient, 0),
                                   .width = extent(gradient, 1),
                                   .scale = scale,
                                   .storage = storage,
                                   .num_threads = threads,
                                   .isa = parse_isa(isa)};
  nb::gil_scoped_release unlocked;
  finish_rows_gradient(arguments);
}

/// The arguments of both directions; `rows` and `packed` may be columns of wider matrices.
QuantisedArguments quantised_arguments(const auto& rows, const auto& packed, const Offsets& row_ids,
                                       Word key, int bits, int threads, const std::string& isa) {
  require(bits == 8 || bits == 4 || bits == 2, "bits must be 8, 4 or 2");
  const std::int64_t num_rows = extent(rows, 0), width = extent(rows, 1);
  require(extent(packed, 0) == num_rows && extent(packed, 1) == quantised_bytes(width, bits),
          "packed must have a row for each row, of quantised_bytes");
  require(extent(row_ids, 0) == num_rows, "row_ids must have one entry for each row");
  const Storage storage = storage_of(rows.dtype(), "bfloat16");
  if (storage == Storage::kFloat64)
    throw nb::type_error("quantised rows are float32, or bfloat16 as uint16");
  return {.source = nullptr,
          .out = nullptr,
          .pitch = row_pitch(rows),
          .packed_pitch = row_pitch(packed),
          .row_ids = row_ids.data(),
          .num_rows = num_rows,
          .width = width,
          .key = key.bits,
          .bits = bits,
          .storage = storage,
          .num_threads = threads,
          .isa = parse_isa(isa)};
}

void py_quantise_rows(const AnyPitched& x, const Offsets& row_ids, Word key, int bits,
                      Pitched<std::uint8_t>& packed, int threads, const std::string& isa) {
  QuantisedArguments arguments = quantised_arguments(x, packed, row_ids, key, bits, threads, isa);
  arguments.source = x.data();
  arguments.out = packed.data();
  nb::gil_scoped_release unlocked;
  quantise_rows(arguments);
}

void py_dequantise_rows(const Pitched<const std::uint8_t>& packed, const Offsets& row_ids, Word key,
                        int bits, OutPitched& out, int threads, const std::string& isa) {
  QuantisedArguments arguments = quantised_arguments(out, packed, row_ids, key, bits, threads, isa);
  arguments.source = packed.data();
  arguments.out = out.data();
  nb::gil_scoped_release unlocked;
  dequantise_rows(arguments);
}

/// What the arrays beside logits must be like.
struct Logits {
  const void* data;
  std::int64_t num_rows, width;
  nb::dlpack::dtype dtype;

  /// The data of an array of this dtype, with as many rows of `columns` numbers.
  template <class Array>
  auto beside(const char* name, Array& array, std::int64_t columns) const {
    const bool fits = array.dtype() == dtype && extent(array, 0) == num_rows &&
                      (array.ndim() == 1 || extent(array, 1) == columns);
    if (!fits)
      throw std::invalid_argument(std::string(name) +
                                  " must have the dtype and rows of the logits");
    return array.data();
  }
};

Logits logits_of(const AnyMatrix& logits) {
  return {logits.data(), extent(logits, 0), extent(logits, 1), logits.dtype()};
}

SoftmaxTargets softmax_targets(const Logits& logits, const Offsets& labels, double smoothing,
                               int threads, const std::string& isa) {
  const SoftmaxTargets targets{.logits = logits.data,
                               .labels = labels.data(),
                               .num_rows = logits.num_rows,
                               .width = logits.width,
                               .smoothing = smoothing,
                               .storage = wide_storage_of("logits", logits.dtype),
                               .num_threads = threads,
                               .isa = parse_isa(isa)};
  require(targets.width > 0, "logits must have a column for each class");
  require(smoothing >= 0.0 && smoothing < 1.0, "smoothing must be in [0, 1)");
  require(extent(labels, 0) == targets.num_rows, "labels must have one entry for each row");
  bool fit = true;
  for (std::int64_t i = 0; i < targets.num_rows; ++i)
    fit &= static_cast<std::uint64_t>(labels.data()[i]) < static_cast<std::uint64_t>(targets.width);
  require(fit, "labels must be columns of the logits");
  return targets;
}

SigmoidTargets sigmoid_targets(const Logits& logits, const AnyMatrix& targets, int threads,
                               const std::string& isa) {
  return {.logits = logits.data,
          .targets = logits.beside("targets", targets, logits.width),
          .num_rows = logits.num_rows,
          .width = logits.width,
          .storage = wide_storage_of("logits", logits.dtype),
          .num_threads = threads,
          .isa = parse_isa(isa)};
}

LossGradient loss_gradient(const Logits& logits, std::optional<AnyVector>& factors, double scale,
                           std::optional<OutMatrix>& out) {
  return {.factors = factors ? logits.beside("factors", *factors, 1) : nullptr,
          .scale = scale,
          .out = out ? logits.beside("gradient", *out, logits.width) : nullptr};
}

void py_softmax_loss(const AnyMatrix& logits, const Offsets& labels, double smoothing,
                     OutVector& losses, std::optional<AnyVector> factors, double scale,
                     std::optional<OutMatrix> gradient, int threads, const std::string& isa) {
  const Logits operand = logits_of(logits);
  const SoftmaxLoss arguments{.targets = softmax_targets(operand, labels, smoothing, threads, isa),
                              .losses = operand.beside("losses", losses, 1),
                              .gradient = loss_gradient(operand, factors, scale, gradient)};
  nb::gil_scoped_release unlocked;
  softmax_loss(arguments);
}

void py_sigmoid_loss(const AnyMatrix& logits, const AnyMatrix& targets, OutVector& losses,
                     std::optional<AnyVector> factors, double scale,
                     std::optional<OutMatrix> gradient, int threads, const std::string& isa) {
  const Logits operand = logits_of(logits);
  const SigmoidLoss arguments{.targets = sigmoid_targets(operand, targets, threads, isa),
                              .losses = operand.beside("losses", losses, 1),
                              .gradient = loss_gradient(operand, factors, scale, gradient)};
  nb::gil_scoped_release unlocked;
  sigmoid_loss(arguments);
}

/// A map whose results are logits, and where its gradients go.
class MapOperands {
 public:
  MapOperands(const AnyMatrix& rows, const AnyMatrix& weight, const std::optional<AnyVector>& bias,
              std::optional<OutMatrix>& for_rows, OutMatrix& for_weight,
              std::optional<OutVector>& for_bias, int threads, const std::string& half,
              const std::string& isa)
      : map{.rows = rows.data(),
            .weight = weight.data(),
            .bias = bias ? bias->data() : nullptr,
            .num_rows = extent(rows, 0),
            .inner = extent(rows, 1),
            .width = extent(weight, 0),
            .storage = storage_of(rows.dtype(), half),
            .num_threads = threads,
            .isa = parse_isa(isa)},
        gradients{.rows = for_rows ? for_rows->data() : nullptr,
                  .weight = for_weight.data(),
                  .bias = for_bias ? for_bias->data() : nullptr},
        logits{nullptr, map.num_rows, map.width, weight.dtype()} {
    require_sums_of("weight", weight, map.storage);
    require_like("the gradient of the weight", for_weight, weight);
    require(extent(weight, 1) == map.inner, "weight must have a column for each column of rows");
    if (for_rows) require_like("the gradient of the rows", *for_rows, rows);
    require(bias.has_value() == for_bias.has_value(), "a bias and its gradient belong together");
    if (!bias) return;
    require_sums_of("bias", *bias, map.storage);
    require_like("the gradient of the bias", *for_bias, *bias);
    require(extent(*bias, 0) == map.width, "bias must have an entry for each row of weight");
  }

  LogitMap map;
  LogitMapGradients gradients;
  Logits logits;

 private:
  static void require_like(const char* name, const auto& array, const auto& other) {
    bool same = array.dtype() == other.dtype();
    for (std::size_t axis = 0; axis < array.ndim(); ++axis)
      same = same && array.shape(axis) == other.shape(axis);
    if (!same) throw std::invalid_argument(std::string(name) + " must have its dtype and shape");
  }
};

/// Either `labels` and their `smoothing` or `targets` are given.
void py_mapped_loss(const AnyMatrix& rows, const AnyMatrix& weight, std::optional<AnyVector> bias,
                    std::optional<Offsets> labels, double smoothing,
                    std::optional<AnyMatrix> targets, OutVector& losses,
                    std::optional<AnyVector> factors, double scale,
                    std::optional<OutMatrix> for_rows, OutMatrix& for_weight,
                    std::optional<OutVector> for_bias, int threads, const std::string& half,
                    const std::string& isa) {
  const MapOperands operands(rows, weight, bias, for_rows, for_weight, for_bias, threads, half,
                             isa);
  std::optional<OutMatrix> no_logits;
  const LossGradient gradient = loss_gradient(operands.logits, factors, scale, no_logits);
  void* const losses_data = operands.logits.beside("losses", losses, 1);
  const auto write = [&](const auto& loss) {
    nb::gil_scoped_release unlocked;
    mapped_loss(operands.map, loss, operands.gradients);
  };
  if (labels)
    write(SoftmaxLoss{softmax_targets(operands.logits, *labels, smoothing, threads, isa),
                      losses_data, gradient});
  else
    write(SigmoidLoss{sigmoid_targets(operands.logits, targets.value(), threads, isa), losses_data,
                      gradient});
}

}  // namespace

void bind_rows(nb::module_& m) {
  define(m, &py_gather_rows,
         "def gather_rows(x: NDArray[typing.Any], rows: NDArray[numpy.int32] | None, "
         "out: NDArray[typing.Any], threads: int, half: str, isa: str) -> None");
  define(m, &py_scatter_add_rows,
         "def scatter_add_rows(src: NDArray[typing.Any], rows: NDArray[numpy.int32], "
         "out: NDArray[typing.Any], threads: int, half: str, isa: str) -> None");
  define(m, &py_row_dots,
         "def row_dots(queries: NDArray[typing.Any], x: NDArray[typing.Any], "
         "rows: NDArray[numpy.int32], out: NDArray[typing.Any], threads: int, isa: str) -> None");
  define(m, &py_integers,
         "def integers(x: NDArray[typing.Any], out: NDArray[numpy.int8], "
         "scales: NDArray[numpy.float32], by_column: bool, threads: int, half: str, isa: str) "
         "-> None");
  define(m, &py_scale_sums,
         "def scale_sums(sums: NDArray[numpy.int32], row_scales: NDArray[numpy.float32], "
         "column_scales: NDArray[numpy.float32], bias: NDArray[numpy.float32] | None, "
         "out: NDArray[typing.Any], accumulate: bool, threads: int, half: str, isa: str) -> None");
  define(m, &py_transpose_rows,
         "def transpose_rows(x: NDArray[typing.Any], out: NDArray[typing.Any], threads: int) "
         "-> None");
  define(m, &py_finish_rows,
         "def finish_rows(x: NDArray[typing.Any], bias: NDArray[typing.Any] | None, "
         "row_ids: NDArray[numpy.int64] | None, key: int, p: float, rectify: bool, "
         "out: NDArray[typing.Any], threads: int, half: str, isa: str) -> None");
  define(m, &py_finish_rows_gradient,
         "def finish_rows_gradient(gradient: NDArray[typing.Any], "
         "result: NDArray[typing.Any] | None, scale: float, out: NDArray[typing.Any] | None, "
         "sums: NDArray[typing.Any] | None, threads: int, half: str, isa: str) -> None");
  define(m, &py_quantise_rows,
         "def quantise_rows(x: NDArray[typing.Any], row_ids: NDArray[numpy.int64], key: int, "
         "bits: int, packed: NDArray[numpy.uint8], threads: int, isa: str) -> None");
  define(m, &py_sigmoid_loss,
         "def sigmoid_loss(logits: NDArray[typing.Any], targets: NDArray[typing.Any], "
         "losses: NDArray[typing.Any], factors: NDArray[typing.Any] | None, scale: float, "
         "gradient: NDArray[typing.Any] | None, threads: int, isa: str) -> None");
  define(m, &py_softmax_loss,
         "def softmax_loss(logits: NDArray[typing.Any], labels: NDArray[numpy.int64], "
         "smoothing: float, losses: NDArray[typing.Any], factors: NDArray[typing.Any] | None, "
         "scale: float, gradient: NDArray[typing.Any] | None, threads: int, isa: str) -> None");
  define(m, &py_mapped_loss,
         "def mapped_loss(rows: NDArray[typing.Any], weight: NDArray[typing.Any], "
         "bias: NDArray[typing.Any] | None, labels: NDArray[numpy.int64] | None, "
         "smoothing: float, targets: NDArray[typing.Any] | None, losses: NDArray[typing.Any], "
         "factors: NDArray[typing.Any] | None, scale: float, "
         "for_rows: NDArray[typing.Any] | None, for_weight: NDArray[typing.Any], "
         "for_bias: NDArray[typing.Any] | None, threads: int, half: str, isa: str) -> None");
  define(m, &py_dequantise_rows,
         "def dequantise_rows(packed: NDArray[numpy.uint8], row_ids: NDArray[numpy.int64], "
         "key: int, bits: int, out: NDArray[typing.Any], threads: int, isa: str) -> None");
}

}  // namespace hpcgnn::kernels
