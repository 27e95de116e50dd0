"""A matrix of several relations multiplies only the columns of each relation."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from hpcgnn.sparse import Kinds, LocalCSR

COUNT, WIDTH, NODES = 3, 2, 8


def matrices(of: str, form: str) -> tuple[LocalCSR, np.ndarray]:
    """Return a matrix whose rows or columns belong to relations, and its dense form."""
    rng = np.random.default_rng(5)
    shape = (11, NODES) if of == "rows" else (NODES, 11)
    dense = np.where(rng.random(shape) < 0.3, rng.normal(size=shape), 0.0)
    dense[2] = 0
    # Relations in random order.
    kinds = rng.integers(0, COUNT, 11).astype(np.int32)
    told = Kinds(COUNT, kinds, None) if of == "rows" else Kinds(COUNT, None, kinds)
    csr = sp.csr_matrix(dense)
    made = LocalCSR(csr.indptr.astype(np.int64), csr.indices, csr.data, shape)
    if form == "few rows":
        every = np.arange(shape[1], dtype=np.int32)
        made = made.select(every, shape[1])
        assert made.rows is not None
    elif form == "factors":
        factors = rng.random(shape[0]), rng.random(shape[1])
        made = made.with_factors(*factors)
        dense = (dense != 0) * np.outer(*factors)
    return replace(made, kinds=told), dense


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("form", ["all rows", "few rows", "factors"])
@pytest.mark.parametrize("of", ["rows", "columns"])
def test_an_entry_has_the_columns_of_its_relation(
    of: str, form: str, turned: bool, accumulate: bool
) -> None:
    matrix, dense = matrices(of, form)
    assert matrix.kinds is not None
    if turned:
        matrix, dense = matrix.transposed, dense.T
    kinds = matrix.kinds
    assert kinds is not None
    rng = np.random.default_rng(6)
    rows, columns = matrix.shape
    if kinds.of_rows is not None:
        x = rng.normal(size=(columns, COUNT, WIDTH))
        expected = np.einsum("ij,jiw->iw", dense, x[:, kinds.of_rows])
    else:
        x = rng.normal(size=(columns, WIDTH))
        own = np.eye(COUNT)[kinds.of_columns]
        expected = np.einsum("ij,jr,jw->irw", dense, own, x).reshape(rows, -1)
    before = rng.normal(size=expected.shape)
    out = before.copy()
    matrix.matmul(x.reshape(columns, -1), out, accumulate=accumulate)
    np.testing.assert_allclose(out, expected + accumulate * before, rtol=1e-13, atol=1e-14)


def test_equal_widths_are_an_ordinary_product() -> None:
    matrix, dense = matrices("rows", "all rows")
    x = np.random.default_rng(7).normal(size=(NODES, WIDTH))
    out = np.empty((len(dense), WIDTH))
    matrix.matmul(x, out)
    np.testing.assert_allclose(out, dense @ x, rtol=1e-13, atol=1e-14)
