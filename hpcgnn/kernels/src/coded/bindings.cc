#include "bindings.h"

#include <algorithm>

#include "coded/coded.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

CodedColumns py_code_columns(const Offsets& indptr, const Indices& indices, int threads) {
  const std::int64_t num_rows = checked_rows(indptr, indices);
  nb::gil_scoped_release unlocked;
  check_indptr(indptr.data(), num_rows, extent(indices, 0));
  return CodedColumns(indptr.data(), indices.data(), num_rows, threads);
}

void py_decode_columns(const CodedColumns* coded, const Offsets& indptr, Vector<std::int32_t>& out,
                       const std::string& isa) {
  require(coded != nullptr, "coded must be CodedColumns");
  const std::int64_t num_rows = checked_offsets(indptr, coded->size());
  require(extent(out, 0) == coded->size(), "out must have an element for each entry");
  const Isa parsed = parse_isa(isa);
  nb::gil_scoped_release unlocked;
  check_indptr(indptr.data(), num_rows, coded->size());
  // Decoding writes whole chunks, for which the result has no room.
  std::int32_t chunk[kChunk + kSlack];
  for (std::int64_t first = 0; first < coded->size(); first += kChunk) {
    coded->decode(indptr.data(), num_rows, first / kChunk, first / kChunk + 1, parsed, chunk);
    std::copy_n(chunk, std::min(kChunk, coded->size() - first), out.data() + first);
  }
}

}  // namespace

void bind_coded(nb::module_& m) {
  nb::class_<CodedColumns>(m, "CodedColumns", "Columns of a matrix as gaps; see `code_columns`.")
      .def("__len__", &CodedColumns::size)
      .def_prop_ro("nbytes", &CodedColumns::bytes, "Bytes of memory.");
  define(m, &py_code_columns,
         "def code_columns(indptr: NDArray[numpy.int64], indices: NDArray[numpy.int32], "
         "threads: int) -> CodedColumns");
  define(m, &py_decode_columns,
         "def decode_columns(coded: CodedColumns, indptr: NDArray[numpy.int64], "
         "out: NDArray[numpy.int32], isa: str) -> None");
}

}  // namespace hpcgnn::kernels
