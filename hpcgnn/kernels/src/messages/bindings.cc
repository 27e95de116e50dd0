#include "bindings.h"

#include <optional>

#include "messages/messages.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

const std::string kHalf = "bfloat16";

/// The data of an array in the shape and dtype of the rows.
template <class Array>
auto alike(const char* name, Array& array, const AnyMatrix& rows) {
  if (array.dtype() != rows.dtype())
    throw nb::type_error(
        (std::string(name) + " must be " + dtype_text(rows.dtype()) + ", as the rows are").c_str());
  if (extent(array, 0) != extent(rows, 0) || extent(array, 1) != extent(rows, 1))
    throw std::invalid_argument(std::string(name) + " must have the shape of the rows");
  return array.data();
}
template <class Array>
auto alike(const char* name, std::optional<Array>& array, const AnyMatrix& rows) {
  using Data = decltype(array->data());
  return array ? alike(name, *array, rows) : Data(nullptr);
}

/// The data of a vector with one accumulator for each column; null for none.
template <class Array>
auto by_column(const char* name, std::optional<Array>& array, const AnyMatrix& rows) {
  using Data = decltype(array->data());
  if (!array) return Data(nullptr);
  require_sums_of(name, *array, storage_of(rows.dtype(), kHalf));
  if (extent(*array, 0) != extent(rows, 1))
    throw std::invalid_argument(std::string(name) + " must have a number a column");
  return array->data();
}

/// The numbers of the edges' ends, checked against the rows of the ends.
template <class Array>
const std::int32_t* checked_ids(const char* name, const std::optional<Array>& of,
                                const std::optional<Indices>& ids, const AnyMatrix& rows) {
  const std::string named(name);
  if (of.has_value() != ids.has_value())
    throw std::invalid_argument(named + " need rows and ids, or neither");
  if (!of) return nullptr;
  if (extent(*of, 1) != extent(rows, 1) || extent(*ids, 0) != extent(rows, 0))
    throw std::invalid_argument(named + " must have the columns of the rows, and an id a row");
  check_range(name, ids->data(), extent(*ids, 0), extent(*of, 0));
  return ids->data();
}

void py_combine_rows(const AnyMatrix& rows, std::optional<AnyMatrix> targets,
                     const std::optional<Indices>& target_ids, std::optional<AnyMatrix> sources,
                     const std::optional<Indices>& source_ids, std::optional<AnyVector> bias,
                     const std::string& activation, OutMatrix& out, int threads,
                     const std::string& isa) {
  for (const auto& each : {targets, sources})
    if (each && each->dtype() != rows.dtype())
      throw nb::type_error("targets and sources must have the dtype of the rows");
  const CombineArguments arguments{
      .rows = rows.data(),
      .targets = targets ? targets->data() : nullptr,
      .target_ids = checked_ids("target_ids", targets, target_ids, rows),
      .sources = sources ? sources->data() : nullptr,
      .source_ids = checked_ids("source_ids", sources, source_ids, rows),
      .bias = by_column("bias", bias, rows),
      .out = alike("out", out, rows),
      .num_rows = extent(rows, 0),
      .width = extent(rows, 1),
      .activation = parse_activation(activation),
      .storage = storage_of(rows.dtype(), kHalf),
      .num_threads = threads,
      .isa = parse_isa(isa)};
  nb::gil_scoped_release unlocked;
  combine_rows(arguments);
}

void py_combine_rows_gradient(
    const AnyMatrix& gradient, std::optional<AnyMatrix> result, const std::string& activation,
    OutMatrix& out, std::optional<OutMatrix> of_targets, const std::optional<Indices>& target_ids,
    std::optional<OutMatrix> of_sources, const std::optional<Indices>& source_ids,
    std::optional<OutVector> of_bias, int threads, const std::string& isa) {
  const Storage storage = storage_of(gradient.dtype(), kHalf);
  for (const auto& each : {of_targets, of_sources})
    if (each) require_sums_of("gradients of targets and sources", *each, storage);
  const CombineGradient arguments{
      .gradient = gradient.data(),
      .result = alike("result", result, gradient),
      .out = alike("out", out, gradient),
      .of_targets = of_targets ? of_targets->data() : nullptr,
      .target_ids = checked_ids("target_ids", of_targets, target_ids, gradient),
      .num_targets = of_targets ? extent(*of_targets, 0) : 0,
      .of_sources = of_sources ? of_sources->data() : nullptr,
      .source_ids = checked_ids("source_ids", of_sources, source_ids, gradient),
      .num_sources = of_sources ? extent(*of_sources, 0) : 0,
      .of_bias = by_column("of_bias", of_bias, gradient),
      .num_rows = extent(gradient, 0),
      .width = extent(gradient, 1),
      .activation = parse_activation(activation),
      .storage = storage,
      .num_threads = threads,
      .isa = parse_isa(isa)};
  nb::gil_scoped_release unlocked;
  combine_rows_gradient(arguments);
}

NormArguments norm_arguments(const AnyMatrix& rows, std::optional<AnyVector>& bias,
                             std::optional<AnyVector>& scale, std::optional<AnyVector>& shift,
                             double eps, int threads, const std::string& isa) {
  require(scale.has_value() == shift.has_value(), "a norm has scale and shift, or neither");
  return {.rows = rows.data(),
          .bias = by_column("bias", bias, rows),
          .scale = by_column("scale", scale, rows),
          .shift = by_column("shift", shift, rows),
          .residual = nullptr,
          .out = nullptr,
          .num_rows = extent(rows, 0),
          .width = extent(rows, 1),
          .eps = eps,
          .storage = storage_of(rows.dtype(), kHalf),
          .num_threads = threads,
          .isa = parse_isa(isa)};
}

void py_norm_rows(const AnyMatrix& rows, std::optional<AnyVector> bias,
                  std::optional<AnyVector> scale, std::optional<AnyVector> shift, double eps,
                  std::optional<AnyMatrix> residual, OutMatrix& out, int threads,
                  const std::string& isa) {
  NormArguments arguments = norm_arguments(rows, bias, scale, shift, eps, threads, isa);
  arguments.residual = alike("residual", residual, rows);
  arguments.out = alike("out", out, rows);
  nb::gil_scoped_release unlocked;
  norm_rows(arguments);
}

void py_norm_rows_gradient(const AnyMatrix& rows, std::optional<AnyVector> bias,
                           std::optional<AnyVector> scale, std::optional<AnyVector> shift,
                           double eps, const AnyMatrix& gradient, OutMatrix& out,
                           std::optional<OutVector> of_bias, std::optional<OutVector> of_scale,
                           std::optional<OutVector> of_shift, int threads, const std::string& isa) {
  AnyMatrix upper = gradient;
  const NormGradient arguments{.norm = norm_arguments(rows, bias, scale, shift, eps, threads, isa),
                               .gradient = alike("gradient", upper, rows),
                               .out = alike("out", out, rows),
                               .of_bias = by_column("of_bias", of_bias, rows),
                               .of_scale = by_column("of_scale", of_scale, rows),
                               .of_shift = by_column("of_shift", of_shift, rows)};
  require(scale.has_value() || (!of_scale && !of_shift), "of_scale and of_shift are of a norm");
  nb::gil_scoped_release unlocked;
  norm_rows_gradient(arguments);
}

}  // namespace

void bind_messages(nb::module_& m) {
  define(m, &py_combine_rows,
         "def combine_rows(rows: NDArray[typing.Any], targets: NDArray[typing.Any] | None, "
         "target_ids: NDArray[numpy.int32] | None, sources: NDArray[typing.Any] | None, "
         "source_ids: NDArray[numpy.int32] | None, bias: NDArray[typing.Any] | None, "
         "activation: str, out: NDArray[typing.Any], threads: int, isa: str) -> None");
  define(m, &py_combine_rows_gradient,
         "def combine_rows_gradient(gradient: NDArray[typing.Any], "
         "result: NDArray[typing.Any] | None, activation: str, out: NDArray[typing.Any], "
         "of_targets: NDArray[typing.Any] | None, target_ids: NDArray[numpy.int32] | None, "
         "of_sources: NDArray[typing.Any] | None, source_ids: NDArray[numpy.int32] | None, "
         "of_bias: NDArray[typing.Any] | None, threads: int, isa: str) -> None");
  define(m, &py_norm_rows,
         "def norm_rows(rows: NDArray[typing.Any], bias: NDArray[typing.Any] | None, "
         "scale: NDArray[typing.Any] | None, shift: NDArray[typing.Any] | None, eps: float, "
         "residual: NDArray[typing.Any] | None, out: NDArray[typing.Any], threads: int, "
         "isa: str) -> None");
  define(m, &py_norm_rows_gradient,
         "def norm_rows_gradient(rows: NDArray[typing.Any], bias: NDArray[typing.Any] | None, "
         "scale: NDArray[typing.Any] | None, shift: NDArray[typing.Any] | None, eps: float, "
         "gradient: NDArray[typing.Any], out: NDArray[typing.Any], "
         "of_bias: NDArray[typing.Any] | None, of_scale: NDArray[typing.Any] | None, "
         "of_shift: NDArray[typing.Any] | None, threads: int, isa: str) -> None");
}

}  // namespace hpcgnn::kernels
