"""Products of few columns with rows in another order, beside SciPy in float64."""

import numpy as np
import pytest
import scipy.sparse as sp

from hpcgnn import kernels
from hpcgnn.sparse import LocalCSR
from hpcgnn.sparse.by_length import by_length

WIDTH = 5


def uneven(num_rows: int, seed: int = 0) -> sp.csr_matrix:
    """Return a matrix with empty rows, a hub longer than 16 bits count, and many lengths."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 12, num_rows)
    lengths[num_rows // 2] = 70_000 if num_rows > 2000 else 700
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    values = rng.normal(size=indptr[-1])
    return sp.csr_matrix((values, rng.integers(0, 777, indptr[-1]), indptr), (num_rows, 777))


def local(matrix: sp.csr_matrix, form: str, dtype: type) -> tuple[LocalCSR, sp.csr_matrix]:
    """Return a matrix in one of the forms of `LocalCSR`, and what it stands for."""
    indptr, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)
    if form == "values":
        return LocalCSR(indptr, indices, matrix.data.astype(dtype), matrix.shape), matrix
    ones = sp.csr_matrix((np.ones(matrix.nnz), matrix.indices, matrix.indptr), matrix.shape)
    if form == "ones":
        return LocalCSR(indptr, indices, None, matrix.shape), ones
    rng = np.random.default_rng(1)
    factors = [rng.uniform(0.5, 2, count).astype(dtype) for count in matrix.shape]
    made = LocalCSR(indptr, indices, None, matrix.shape).with_factors(*factors)
    return made, sp.diags(factors[0]) @ ones @ sp.diags(factors[1])


@pytest.mark.parametrize("num_rows", [1, 7, 1024, 5003])
@pytest.mark.parametrize("form", ["values", "ones", "factors"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_have_equal_bits(num_rows: int, form: str, dtype: type) -> None:
    matrix, reference = local(uneven(num_rows), form, dtype)
    x = np.random.default_rng(2).normal(size=(777, WIDTH)).astype(dtype)
    out, first = np.empty((num_rows, WIDTH), dtype), None
    for _ in range(6):
        out[:] = np.nan
        matrix.matmul(x, out)
        first = out.copy() if first is None else first
        np.testing.assert_array_equal(out, first)
        matrix.matmul(x, out, accumulate=True)
        np.testing.assert_array_equal(out, first + first)
    expected = reference @ x.astype(np.float64)
    limit = 1e-3 if dtype == np.float32 else 1e-11
    np.testing.assert_allclose(first, expected, rtol=limit, atol=limit)


def test_some_rows_stored() -> None:
    matrix, reference = local(uneven(3000), "values", np.float64)
    rows = np.flatnonzero(np.diff(matrix.indptr)).astype(np.int32)
    indptr = np.concatenate([[0], np.cumsum(np.diff(matrix.indptr)[rows])])
    part = LocalCSR(indptr, matrix.indices, matrix.values, matrix.shape, rows)
    x = np.random.default_rng(2).normal(size=(777, WIDTH))
    for _ in range(6):
        out = np.full((3000, WIDTH), np.nan)
        part.matmul(x, out)
        np.testing.assert_allclose(out, reference @ x, atol=1e-11)


def test_rows_of_a_block_have_ascending_lengths() -> None:
    matrix, _ = local(uneven(5003), "values", np.float64)
    ordered = by_length(matrix.operand)
    lengths = np.diff(ordered.indptr)
    for start in range(0, 5003, 1024):
        assert np.all(np.diff(lengths[start : start + 1024]) >= 0)
        rows = ordered.rows[start : start + 1024]
        np.testing.assert_array_equal(np.sort(rows), np.arange(start, start + len(rows)))


@pytest.mark.parametrize("is_even", [False, True])
def test_a_copy_is_made_where_it_pays(is_even: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    product = kernels.spmm
    monkeypatch.setattr(
        kernels,
        "spmm",
        lambda matrix, *a, **b: (taken.append(matrix.rows), product(matrix, *a, **b)),
    )
    given = sp.csr_matrix(np.ones((300, 9))) if is_even else uneven(300)
    matrix, _ = local(given, "values", np.float32)
    for width in (4, 4, 4, 17, 4, 4, 17):
        matrix.matmul(
            np.ones((given.shape[1], width), np.float32), np.empty((300, width), np.float32)
        )
    is_copy = [rows is not None for rows in taken]
    assert is_copy == [False] * 4 + [not is_even, not is_even, False]
