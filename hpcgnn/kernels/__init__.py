"""Local compute kernels: products of sparse and dense matrices, packing of rows, dropout.

The kernels run in native code with the GIL released, on ``threads`` OpenMP threads (0 = the OpenMP
default), with the widest instruction set of the machine (``isa="auto"``; `available_isas` names
the others). Results do not depend on the number of threads. Names to know: `spmm`, `gather_rows`,
`scatter_add_rows`. Outputs are arrays of the caller; every array is C-contiguous and is never
copied. 16-bit floats travel as uint16 views, and ``half`` says which kind they are.

This package imports nothing but NumPy and its own extension.
"""

from hpcgnn.kernels._kernels import available_isas
from hpcgnn.kernels.cover import VertexCover, vertex_cover
from hpcgnn.kernels.dropout import dropout_rows
from hpcgnn.kernels.rows import gather_rows, scatter_add_rows
from hpcgnn.kernels.sparse import spmm, transpose_csr, validate_csr

__all__ = [
    "VertexCover",
    "available_isas",
    "dropout_rows",
    "gather_rows",
    "scatter_add_rows",
    "spmm",
    "transpose_csr",
    "validate_csr",
    "vertex_cover",
]
