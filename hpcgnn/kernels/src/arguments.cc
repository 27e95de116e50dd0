#include "arguments.h"

#include <stdexcept>

namespace hpcgnn::kernels {
namespace {

std::string text(nb::handle value) { return nb::cast<std::string>(nb::str(value)); }

}  // namespace

void refuse_array(nb::handle value, const char* name, const ArrayKind& kind) {
  const std::string subject(name);
  const nb::module_ numpy = nb::module_::import_("numpy");
  if (PyObject_IsInstance(value.ptr(), nb::object(numpy.attr("ndarray")).ptr()) != 1)
    throw nb::type_error(
        (subject + " must be a NumPy array, not " + text(value.type().attr("__name__"))).c_str());
  // A dtype may have a listed name but the wrong byte order.
  const nb::object dtype = value.attr("dtype");
  const std::string found = text(dtype.attr("name")), listed = std::string(" or ") + kind.dtypes;
  if ((listed + " or ").find(" or " + found + " or ") == std::string::npos ||
      !nb::cast<bool>(dtype.attr("isnative")))
    refuse_dtype(value, name, kind.dtypes);
  if (const auto ndim = nb::cast<int>(value.attr("ndim")); ndim != kind.ndim)
    throw std::invalid_argument(subject + " must have " + std::to_string(kind.ndim) +
                                " dimensions, not " + std::to_string(ndim));
  const nb::object flags = value.attr("flags");
  if (kind.contiguous && !nb::cast<bool>(flags.attr("c_contiguous")))
    throw nb::type_error(
        (subject + " must be C-contiguous; pass numpy.ascontiguousarray(" + name + ")").c_str());
  if (kind.written && !nb::cast<bool>(flags.attr("writeable")))
    throw nb::type_error((subject + " is written to but is read-only").c_str());
  throw nb::type_error((subject + " is not an array that kernels accept").c_str());
}

void refuse_dtype(nb::handle array, const char* name, const char* dtypes) {
  // Other objects that share their memory, such as bytes, have no dtype.
  const bool is_numpy = nb::hasattr(array, "dtype");
  const nb::object kind = is_numpy ? array.attr("dtype") : array.type().attr("__name__");
  const std::string found = text(kind);
  throw nb::type_error((std::string(name) + " must be " + dtypes + ", not " + found).c_str());
}

void refuse_value(nb::handle value, const char* name) {
  const std::string shown = text(nb::repr(value));
  throw nb::type_error((std::string(name) + " = " + shown + " has the wrong type").c_str());
}

Word take_word(nb::handle value, const char* name) {
  std::uint64_t bits = 0;
  if (nb::try_cast(value, bits)) return {bits};
  if (PyIndex_Check(value.ptr()) == 0) refuse_value(value, name);
  throw std::invalid_argument(std::string(name) + " must be in [0, 2**64), not " + text(value));
}

}  // namespace hpcgnn::kernels
