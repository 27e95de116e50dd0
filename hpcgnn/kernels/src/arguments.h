/// Arguments from Python: accepted unchanged, or refused in one line that names them.
///
/// The type of the C++ parameter alone defines what an argument must be. Arrays are never
/// converted: results would be written to a converted copy of an output and lost.
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

/// The requirements on an array, in the words of messages.
struct ArrayKind {
  const char* dtypes;
  int ndim;
  bool contiguous, written;
};

/// Raise the reason why an argument is not such an array.
[[noreturn]] void refuse_array(nb::handle value, const char* name, const ArrayKind& kind);

/// Raise an error: an array has none of the types `dtypes`.
[[noreturn]] void refuse_dtype(nb::handle array, const char* name, const char* dtypes);

/// Raise an error: an argument that is not an array has the wrong type.
[[noreturn]] void refuse_value(nb::handle value, const char* name);

/// The key of random draws, 64 bits.
struct Word {
  std::uint64_t bits;
};

/// @throws ValueError beyond 64 bits, TypeError for anything but an integer.
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

/// Call a function with the results of `take` for the values.
template <class R, class... Args, std::size_t... I>
nb::object call(R (*run)(Args...), const nb::handle* values, const std::string* names,
                std::index_sequence<I...>) {
  // Braces evaluate in order, so an error names the first wrong argument.
  std::tuple<std::remove_cvref_t<Args>...> taken{
      take<std::remove_cvref_t<Args>>(values[I], names[I].c_str())...};
  if constexpr (std::is_void_v<R>) {
    std::apply(run, taken);
    return nb::none();
  } else {
    return nb::cast(std::apply(run, taken));
  }
}

/// The names of N arguments in ``def function(name: type, ...) -> type``.
template <std::size_t N>
std::array<std::string, N> names_in(const std::string& signature) {
  std::array<std::string, N> names;
  std::size_t colon = 0;
  for (std::string& name : names) {
    colon = signature.find(':', colon + 1);
    const std::size_t first = signature.find_last_of("( ", colon) + 1;
    name = signature.substr(first, colon - first);
  }
  return names;
}

/// The name of the function in such a signature.
inline std::string name_in(const std::string& signature) {
  return signature.substr(4, signature.find('(') - 4);
}

/// Bind a function, given the names of its arguments in Python.
template <class R, class... Args, class... Extra>
void define(nb::module_& m, const char* function, R (*run)(Args...),
            std::array<std::string, sizeof...(Args)> names, const Extra&... extra) {
  constexpr auto kAll = std::index_sequence_for<Args...>();
  const auto bind = [&]<std::size_t... I>(std::index_sequence<I...>) {
    const auto body = [run, names](std::conditional_t<true, nb::handle, Args>... values) {
      const nb::handle all[] = {values...};
      return call(run, all, names.data(), kAll);
    };
    m.def(function, body, nb::arg(names[I].c_str()).none()..., extra...);
  };
  bind(kAll);
}

/// Bind a function, given its signature in Python.
template <class R, class... Args>
void define(nb::module_& m, R (*run)(Args...), const char* signature) {
  define(m, name_in(signature).c_str(), run, names_in<sizeof...(Args)>(signature),
         nb::sig(signature));
}

/// Bind a function for float32 and one for float64, chosen by the dtype of argument `which`.
template <class R, class... Args, class W, class... Wide, class... Extra>
void define_by_dtype(nb::module_& m, const char* function, R (*single)(Args...), W (*wide)(Wide...),
                     std::array<std::string, sizeof...(Args)> names, std::size_t which,
                     const Extra&... extra) {
  constexpr auto kAll = std::index_sequence_for<Args...>();
  const auto bind = [&]<std::size_t... I>(std::index_sequence<I...>) {
    const auto body = [=](std::conditional_t<true, nb::handle, Args>... values) {
      const nb::handle all[] = {values...};
      nb::ndarray<nb::ro> chosen;
      const bool is_array = nb::try_cast(all[which], chosen, false);
      const bool is_wide = is_array && chosen.dtype() == nb::dtype<double>();
      if (is_array && !is_wide && chosen.dtype() != nb::dtype<float>())
        refuse_dtype(all[which], names[which].c_str(), "float32 or float64");
      return is_wide ? call(wide, all, names.data(), kAll) : call(single, all, names.data(), kAll);
    };
    m.def(function, body, nb::arg(names[I].c_str()).none()..., extra...);
  };
  bind(kAll);
}

/// Bind these, given their signature in Python.
template <class R, class... Args, class W, class... Wide>
void define_by_dtype(nb::module_& m, R (*single)(Args...), W (*wide)(Wide...), std::size_t which,
                     const char* signature) {
  define_by_dtype(m, name_in(signature).c_str(), single, wide, names_in<sizeof...(Args)>(signature),
                  which, nb::sig(signature));
}

}  // namespace hpcgnn::kernels
