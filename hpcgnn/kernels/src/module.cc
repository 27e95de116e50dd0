#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "simd/isa.h"

NB_MODULE(_kernels, m) {
  m.def("available_isas", &hpcgnn::kernels::available_isas);
  m.def("is_intel", &hpcgnn::kernels::is_intel);
  hpcgnn::kernels::bind_coded(m);
  hpcgnn::kernels::bind_sparse(m);
  hpcgnn::kernels::bind_pattern(m);
  hpcgnn::kernels::bind_rows(m);
  hpcgnn::kernels::bind_messages(m);
  hpcgnn::kernels::bind_chain(m);
  hpcgnn::kernels::bind_cover(m);
  hpcgnn::kernels::bind_dense(m);
  hpcgnn::kernels::bind_exact(m);
  hpcgnn::kernels::bind_attention(m);
}
