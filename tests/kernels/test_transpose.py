import numpy as np
import pytest
import scipy.sparse

from hpcgnn import kernels


@pytest.mark.parametrize("dtype", ["float32", "float64", None])
def test_transpose_equals_scipy(graph, dtype):
    indptr, indices = graph.indptr, graph.indices
    weights = None if dtype is None else graph.values.astype(dtype)
    positions = np.arange(indices.size, dtype=np.int64)
    shape = graph.num_rows, graph.num_columns
    expected = scipy.sparse.csr_matrix((positions, indices, indptr), shape=shape).T.tocsr()
    for threads in (1, 2, 3):
        out = kernels.transpose_csr(
            indptr, indices, weights, graph.num_columns, with_source=True, threads=threads
        )
        np.testing.assert_array_equal(out[0], expected.indptr)
        np.testing.assert_array_equal(out[1], expected.indices)
        np.testing.assert_array_equal(out[3], expected.data)
        if weights is None:
            assert out[2] is None
        else:
            np.testing.assert_array_equal(out[2], weights[expected.data])
            assert out[2].dtype == weights.dtype


def test_twice_is_the_original(graph):
    csr = graph.indptr, graph.indices, graph.values
    once = kernels.transpose_csr(*csr, graph.num_columns)
    twice = kernels.transpose_csr(*once[:3], graph.num_rows)
    assert once[3] is twice[3] is None
    for found, expected in zip(twice, csr, strict=False):
        np.testing.assert_array_equal(found, expected)


def test_column_out_of_range():
    with pytest.raises(ValueError, match="indices holds 2"):
        kernels.transpose_csr(np.array([0, 1]), np.array([2], np.int32), None, 2)


def symmetric_csr(num_nodes: int, seed: int):
    rng = np.random.default_rng(seed)
    pattern = scipy.sparse.random(num_nodes, num_nodes, 0.1, format="csr", random_state=rng)
    both = (pattern + pattern.T).tocsr()
    both.sort_indices()
    return both.indptr.astype(np.int64), both.indices, rng.standard_normal(both.nnz)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("num_nodes", [1, 2, 33, 150])
def test_symmetric_pattern_in_one_pass(dtype, num_nodes):
    indptr, indices, values = symmetric_csr(num_nodes, 97)
    values = values.astype(dtype)
    out = kernels.transpose_values_symmetric(indptr, indices, values)
    matrix = scipy.sparse.csr_matrix((values, indices, indptr), (num_nodes, num_nodes))
    np.testing.assert_array_equal(out, matrix.T.tocsr().data)
    assert out.dtype == dtype
    np.testing.assert_array_equal(kernels.transpose_values_symmetric(indptr, indices, out), values)


def test_pattern_that_is_not_symmetric():
    with pytest.raises(ValueError, match="column 1 has more entries than row 1"):
        kernels.transpose_values_symmetric(
            np.array([0, 2, 2]), np.array([0, 1], np.int32), np.ones(2)
        )
    with pytest.raises(ValueError, match="indices holds 5"):
        kernels.transpose_values_symmetric(np.array([0, 1]), np.array([5], np.int32), np.ones(1))


def test_bytes_are_no_values() -> None:
    offsets, columns = np.array([0, 1]), np.array([0], np.int32)
    with pytest.raises(TypeError, match="values must be float32 or float64, not bytes"):
        kernels.transpose_csr(offsets, columns, b"", 1)  # type: ignore[arg-type]
