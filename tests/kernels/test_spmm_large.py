"""Products large enough for column tiles, packing and streamed results."""

import numpy as np
import pytest
import scipy.sparse

from hpcgnn import kernels
from hpcgnn.kernels import SparseMatrix


def aligned(shape, dtype):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    buffer = np.zeros(size + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size].view(dtype).reshape(shape)


@pytest.mark.parametrize(
    ("num_nodes", "width", "dtype"),
    [
        (3001, 400, "float32"),
        (17011, 128, "float32"),
        (5003, 129, "float64"),
        (70001, 32, "float32"),
    ],
)
@pytest.mark.parametrize("degree", [4, 20])
def test_large_products(isa, num_nodes, width, dtype, degree):
    rng = np.random.default_rng(101)
    indices = rng.integers(0, num_nodes, num_nodes * degree).astype(np.int32)
    indptr = np.arange(num_nodes + 1) * degree
    values = rng.standard_normal(indices.size).astype(dtype)
    x, out = aligned((num_nodes, width), dtype), aligned((num_nodes, width), dtype)
    x[:] = rng.standard_normal(x.shape)
    matrix = scipy.sparse.csr_matrix((values, indices, indptr), (num_nodes, num_nodes))
    checked = rng.choice(num_nodes, 50, replace=False)
    expected = matrix[checked].astype(np.float64) @ x.astype(np.float64)
    results = []
    for threads in (1, 2, 3):
        out[:] = np.nan
        kernels.spmm(SparseMatrix(indptr, indices, values), x, out, threads=threads, isa=isa)
        results.append(out.copy())
    tolerance = {"float32": 1e-5, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(out[checked], expected, atol=tolerance * np.abs(expected).max())
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_tiles_do_not_change_bits(isa):
    """A subset of the rows has other tiles than all rows, but the same sums."""
    rng = np.random.default_rng(103)
    num_nodes, width, degree = 3001, 400, 30
    indices = rng.integers(0, num_nodes, num_nodes * degree).astype(np.int32)
    indptr = np.arange(num_nodes + 1) * degree
    x = rng.standard_normal((num_nodes, width)).astype(np.float32)
    whole, part = np.empty_like(x), np.empty((100, width), np.float32)
    kernels.spmm(SparseMatrix(indptr, indices), x, whole, isa=isa)
    kernels.spmm(SparseMatrix(indptr[:101], indices[: 100 * degree]), x, part, isa=isa)
    np.testing.assert_array_equal(part, whole[:100])
