/// The part of the extension module that covers blocks.
#pragma once

#include <nanobind/nanobind.h>

namespace hpcgnn::kernels {

void bind_cover(nanobind::module_& m);

}  // namespace hpcgnn::kernels
