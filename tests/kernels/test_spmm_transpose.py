import numpy as np
import pytest

from hpcgnn import kernels
from hpcgnn.kernels import SparseMatrix


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weighted", [True, False])
def test_equals_scipy(graph, isa, dtype, weighted):
    weights = graph.values.astype(dtype) if weighted else None
    tolerance = {"float32": 1e-5, "float64": 1e-12}[dtype]
    for width in (1, 3, 16, 33, 100, 256):
        x = np.random.default_rng(79).standard_normal((graph.num_rows, width)).astype(dtype)
        expected = graph.oracle(
            "transpose",
            (dtype, weighted, width),
            lambda x=x: graph.to_scipy(dtype, weighted).T @ x.astype(np.float64),
        )
        results = []
        for threads in (1, 2, 3):
            out = np.full((graph.num_columns, width), np.nan, dtype)
            csr = graph.indptr, graph.indices, weights
            kernels.spmm_transpose(SparseMatrix(*csr), x, out, threads=threads, isa=isa)
            results.append(out.tobytes())
        assert len(set(results)) == 1
        scale = max(1.0, np.abs(expected).max(initial=0))
        assert np.abs(out - expected).max(initial=0) <= tolerance * scale


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("subset", [False, True])
@pytest.mark.parametrize("accumulate", [False, True])
def test_is_the_adjoint_of_spmm(graph, isa, mean, subset, accumulate):
    rng = np.random.default_rng(83)
    longer = graph.num_rows + 5 * subset
    rows = rng.permutation(longer)[: graph.num_rows].astype(np.int32) if subset else None
    x, y = graph.dense(13), rng.standard_normal((longer, 13))
    forward, backward = np.zeros_like(y), np.zeros_like(x)
    csr = graph.indptr, graph.indices, graph.values
    matrix, form = SparseMatrix(*csr, rows=rows, mean=mean), {"accumulate": accumulate, "isa": isa}
    kernels.spmm(matrix, x, forward, **form)
    kernels.spmm_transpose(matrix, y, backward, **form)
    left, right = np.vdot(forward, y), np.vdot(x, backward)
    assert left == pytest.approx(right, rel=1e-10, abs=1e-10)


def test_accumulate_adds(graph, isa):
    rng = np.random.default_rng(89)
    x, start = rng.standard_normal((graph.num_rows, 9)), graph.dense(9)
    plain, added = np.empty_like(start), start.copy()
    csr = graph.indptr, graph.indices, graph.values
    kernels.spmm_transpose(SparseMatrix(*csr), x, plain, isa=isa)
    kernels.spmm_transpose(SparseMatrix(*csr), x, added, accumulate=True, isa=isa)
    np.testing.assert_allclose(added, start + plain, atol=1e-11)


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_half_input(half, isa):
    one = np.array([[0x3F80 if half == "bfloat16" else 0x3C00] * 19], np.uint16)
    out = np.empty((4, 19), np.float32)
    indptr, indices = np.array([0, 3]), np.array([0, 2, 3], np.int32)
    weights = np.array([1.0, 2.0, 3.0], np.float32)
    kernels.spmm_transpose(SparseMatrix(indptr, indices, weights), one, out, half=half, isa=isa)
    np.testing.assert_array_equal(out, np.outer([1, 0, 2, 3], np.ones(19)))


def test_out_of_range_is_refused():
    indptr, x = np.array([0, 1]), np.ones((1, 2))
    for bad in (3, -1):
        indices = np.array([bad], np.int32)
        with pytest.raises(ValueError, match=f"indices holds {bad}"):
            kernels.spmm_transpose(SparseMatrix(indptr, indices), x, np.zeros((3, 2)))
    matrix = SparseMatrix(indptr, np.zeros(1, np.int32))
    with pytest.raises(TypeError, match="out must be float64 when x is, else float32"):
        kernels.spmm_transpose(matrix, x, np.zeros((3, 2), np.float32))
