/// Array types and checks shared by the parts of the extension module.
///
/// Shapes, offsets and row numbers are checked here, before the GIL is released; defaults and
/// documentation live in the Python modules.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "arguments.h"
#include "messages/messages.h"
#include "pattern/pattern.h"
#include "types.h"

namespace hpcgnn::kernels {

template <class T>
using Vector = nb::ndarray<T, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<T, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using AnyVector = nb::ndarray<nb::ro, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using AnyMatrix = nb::ndarray<nb::ro, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutMatrix = nb::ndarray<nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutVector = nb::ndarray<nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
/// Rows that may be columns of a wider matrix; see `row_pitch`.
template <class T>
using Pitched = nb::ndarray<T, nb::numpy, nb::ndim<2>, nb::device::cpu>;
using AnyPitched = nb::ndarray<nb::ro, nb::numpy, nb::ndim<2>, nb::device::cpu>;
using OutPitched = nb::ndarray<nb::numpy, nb::ndim<2>, nb::device::cpu>;
using Offsets = Vector<const std::int64_t>;
using Indices = Vector<const std::int32_t>;

inline std::int64_t extent(const auto& array, int axis) {
  return static_cast<std::int64_t>(array.shape(static_cast<std::size_t>(axis)));
}

inline void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

/// Number of elements from one row to the next.
inline std::int64_t row_pitch(const auto& rows) {
  require(extent(rows, 0) == 0 || extent(rows, 1) < 2 || rows.stride(1) == 1,
          "columns must lie side by side");
  return rows.stride(0);
}

inline Activation parse_activation(const std::string& name) {
  if (name == "none") return Activation::kNone;
  if (name == "relu") return Activation::kRelu;
  if (name == "elu") return Activation::kElu;
  throw std::invalid_argument("activation must be none, relu or elu, not " + name);
}

/// The type of a dense operand's elements; `half` names what uint16 elements are.
inline Storage storage_of(nb::dlpack::dtype dtype, const std::string& half) {
  if (dtype == nb::dtype<std::int32_t>())
    throw nb::type_error("int32 rows are multiplied, gathered and scattered to float64 alone");
  if (dtype == nb::dtype<float>()) return Storage::kFloat32;
  if (dtype == nb::dtype<double>()) return Storage::kFloat64;
  if (half == "bfloat16") return Storage::kBFloat16;
  if (half == "float16") return Storage::kFloat16;
  const std::string named = half.empty() ? "None" : "'" + half + "'";
  throw nb::type_error(
      ("uint16 operands need half='bfloat16' or half='float16', not " + named).c_str());
}

/// As `storage_of`, where rows of int32 may be multiplied or added up, too.
inline Storage storage_or_int32(nb::dlpack::dtype dtype, const std::string& half) {
  return dtype == nb::dtype<std::int32_t>() ? Storage::kInt32 : storage_of(dtype, half);
}

inline const char* dtype_text(nb::dlpack::dtype dtype) {
  if (dtype == nb::dtype<float>()) return "float32";
  if (dtype == nb::dtype<std::int32_t>()) return "int32";
  return dtype == nb::dtype<double>() ? "float64" : "uint16";
}

/// The type of an operand that has no 16-bit form.
inline Storage wide_storage_of(const char* name, nb::dlpack::dtype dtype) {
  if (dtype == nb::dtype<std::uint16_t>())
    throw nb::type_error((std::string(name) + " must be float32 or float64, not uint16").c_str());
  return storage_of(dtype, "");
}

/// Whether an array has the accumulator type of a dense operand.
inline bool has_sums_of(const auto& array, Storage operand) {
  const bool wide = accumulator_of(operand) == Storage::kFloat64;
  return array.dtype() == (wide ? nb::dtype<double>() : nb::dtype<float>());
}

/// Raise unless an array has the accumulator type of a dense operand.
inline void require_sums_of(const char* name, const auto& array, Storage operand) {
  if (has_sums_of(array, operand)) return;
  const bool wide = accumulator_of(operand) == Storage::kFloat64;
  const char* const wanted = wide ? "float64" : "float32";
  throw nb::type_error((std::string(name) + " must be " + wanted + ", not " +
                        dtype_text(array.dtype()) + ", beside the other operands")
                           .c_str());
}

/// A new array that Python frees.
template <class T>
Vector<T> new_vector(std::int64_t size) {
  T* const data = new T[static_cast<std::size_t>(size)];
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return Vector<T>(data, {static_cast<std::size_t>(size)}, owner);
}

/// The cheap checks of offsets; products check the order of the offsets as they go.
inline std::int64_t checked_offsets(const Offsets& indptr, std::int64_t nonzeros) {
  require(extent(indptr, 0) > 0, "indptr must not be empty");
  const std::int64_t num_rows = extent(indptr, 0) - 1;
  require(indptr.data()[0] == 0, "indptr must start at 0");
  require(indptr.data()[num_rows] == nonzeros, "indptr must end at the number of indices");
  return num_rows;
}

inline std::int64_t checked_rows(const Offsets& indptr, const Indices& indices) {
  return checked_offsets(indptr, extent(indices, 0));
}

inline const std::int32_t* checked_subset(const std::optional<Indices>& rows, std::int64_t num_rows,
                                          std::int64_t limit) {
  if (!rows) return nullptr;
  require(extent(*rows, 0) == num_rows, "rows must have one entry for each row of indptr");
  check_range("rows", rows->data(), num_rows, limit);
  return rows->data();
}

void bind_attention(nb::module_& m);
void bind_chain(nb::module_& m);
void bind_coded(nb::module_& m);
void bind_cover(nb::module_& m);
void bind_dense(nb::module_& m);
void bind_exact(nb::module_& m);
void bind_messages(nb::module_& m);
void bind_pattern(nb::module_& m);
void bind_rows(nb::module_& m);
void bind_sparse(nb::module_& m);

}  // namespace hpcgnn::kernels
