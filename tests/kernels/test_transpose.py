import numpy as np
import pytest
import scipy.sparse

from hpcgnn import kernels


@pytest.mark.parametrize("dtype", ["float32", "float64", None])
def test_transpose_equals_scipy(graph, dtype):
    (indptr, indices, values), num_columns = graph
    weights = None if dtype is None else values.astype(dtype)
    shape = (indptr.size - 1, num_columns)
    positions = np.arange(indices.size, dtype=np.int64)
    expected = scipy.sparse.csr_matrix((positions, indices, indptr), shape=shape).T.tocsr()
    for threads in (1, 2, 3):
        out = kernels.transpose_csr(indptr, indices, weights, num_columns, threads=threads)
        np.testing.assert_array_equal(out[0], expected.indptr)
        np.testing.assert_array_equal(out[1], expected.indices)
        np.testing.assert_array_equal(out[3], expected.data)
        if weights is None:
            assert out[2] is None
        else:
            np.testing.assert_array_equal(out[2], weights[expected.data])
            assert out[2].dtype == weights.dtype


def test_twice_is_the_original(graph):
    (indptr, indices, values), num_columns = graph
    once = kernels.transpose_csr(indptr, indices, values, num_columns)
    twice = kernels.transpose_csr(once[0], once[1], once[2], indptr.size - 1)
    np.testing.assert_array_equal(twice[0], indptr)
    np.testing.assert_array_equal(twice[1], indices)
    np.testing.assert_array_equal(twice[2], values)


def test_column_out_of_range():
    with pytest.raises(ValueError, match="indices holds 2"):
        kernels.transpose_csr(np.array([0, 1]), np.array([2], np.int32), None, 2)
