/// Arguments of Python's functions: taken as they are, or refused in one line that names them.
///
/// What an argument must be is said once, by the type that the C++ function takes. No array is ever
/// converted: a converted copy of an output would swallow the result.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace hpcgnn::kernels {

namespace nb = nanobind;

/// What an array must be, as a message says it.
struct ArrayKind {
  const char* dtypes;
  int ndim;
  bool contiguous, written;
};

/// Raise what is wrong with an argument that is no such array.
[[noreturn]] void refuse_array(nb::handle value, const char* name, const ArrayKind& kind);

/// Raise that an array has another type than one of `dtypes`.
[[noreturn]] void refuse_dtype(nb::handle array, const char* name, const char* dtypes);

/// Raise that an argument is no number, or no word, of its kind.
[[noreturn]] void refuse_value(nb::handle value, const char* name);

/// 64 bits: the key of a draw.
struct Word {
  std::uint64_t bits;
};

/// @throws ValueError beyond 64 bits, TypeError for what is no integer.
Word take_word(nb::handle value, const char* name);

template <class T>
constexpr const char* dtype_name() {
  if constexpr (std::is_same_v<T, float>) return "float32";
  if constexpr (std::is_same_v<T, double>) return "float64";
  if constexpr (std::is_same_v<T, std::int64_t>) return "int64";
  if constexpr (std::is_same_v<T, std::int32_t>) return "int32";
  if constexpr (std::is_same_v<T, std::uint8_t>) return "uint8";
  if constexpr (std::is_same_v<T, bool>) return "bool";
  return "float32 or float64 or uint16";
}

inline bool is_dense(nb::dlpack::dtype dtype) {
  return dtype == nb::dtype<float>() || dtype == nb::dtype<double>() ||
         dtype == nb::dtype<std::uint16_t>() || dtype == nb::dtype<std::int32_t>();
}

template <class T>
constexpr bool kIsOptional = false;
template <class T>
constexpr bool kIsOptional<std::optional<T>> = true;
template <class T>
constexpr bool kIsArray = false;
template <class... T>
constexpr bool kIsArray<nb::ndarray<T...>> = true;

/// The value of an argument; arrays without a scalar type are dense operands.
template <class T>
T take(nb::handle value, const char* name) {
  if constexpr (kIsOptional<T>) {
    if (value.is_none()) return std::nullopt;
    return take<typename T::value_type>(value, name);
  } else if constexpr (std::is_same_v<T, Word>) {
    return take_word(value, name);
  } else if constexpr (kIsArray<T>) {
    using Scalar = std::remove_const_t<typename T::Scalar>;
    T array;
    bool fits = nb::try_cast<T>(value, array, false);
    if constexpr (std::is_void_v<Scalar>) fits = fits && is_dense(array.dtype());
    if (!fits)
      refuse_array(value, name,
                   {dtype_name<Scalar>(), T::Config::N, T::Order == 'C', !T::ReadOnly});
    return array;
  } else if constexpr (std::is_same_v<T, nb::handle>) {
    return value;
  } else {
    T number{};
    if (!nb::try_cast<T>(value, number)) refuse_value(value, name);
    return number;
  }
}

/// Call a function with what `take` makes of the values.
template <class R, class... Args, std::size_t... I>
nb::object call(R (*run)(Args...), const nb::handle* values, const char* const* names,
                std::index_sequence<I...>) {
  // Braces: the first fault is named.
  std::tuple<std::remove_cvref_t<Args>...> taken{
      take<std::remove_cvref_t<Args>>(values[I], names[I])...};
  if constexpr (std::is_void_v<R>) {
    std::apply(run, taken);
    return nb::none();
  } else {
    return nb::cast(std::apply(run, taken));
  }
}

/// Bind a function to the names that Python has for its arguments.
template <class R, class... Args, class... Extra>
void define(nb::module_& m, const char* function, R (*run)(Args...),
            std::array<const char*, sizeof...(Args)> names, const Extra&... extra) {
  constexpr auto kAll = std::index_sequence_for<Args...>();
  const auto bind = [&]<std::size_t... I>(std::index_sequence<I...>) {
    const auto body = [run, names](std::conditional_t<true, nb::handle, Args>... values) {
      const nb::handle all[] = {values...};
      return call(run, all, names.data(), kAll);
    };
    m.def(function, body, nb::arg(names[I]).none()..., extra...);
  };
  bind(kAll);
}

/// Bind a function for float32 and one for float64; the dtype of argument number `which` chooses.
template <class R, class... Args, class W, class... Wide, class... Extra>
void define_by_dtype(nb::module_& m, const char* function, R (*single)(Args...), W (*wide)(Wide...),
                     std::array<const char*, sizeof...(Args)> names, std::size_t which,
                     const Extra&... extra) {
  constexpr auto kAll = std::index_sequence_for<Args...>();
  const auto bind = [&]<std::size_t... I>(std::index_sequence<I...>) {
    const auto body = [=](std::conditional_t<true, nb::handle, Args>... values) {
      const nb::handle all[] = {values...};
      nb::ndarray<nb::ro> chosen;
      const bool is_array = nb::try_cast(all[which], chosen, false);
      const bool is_wide = is_array && chosen.dtype() == nb::dtype<double>();
      if (is_array && !is_wide && chosen.dtype() != nb::dtype<float>())
        refuse_dtype(all[which], names[which], "float32 or float64");
      return is_wide ? call(wide, all, names.data(), kAll) : call(single, all, names.data(), kAll);
    };
    m.def(function, body, nb::arg(names[I]).none()..., extra...);
  };
  bind(kAll);
}

}  // namespace hpcgnn::kernels
