"""Sparse features: maps, gradients and dropout equal those of dense rows."""

from mpi4py import MPI

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpcgnn import kernels
from hpcgnn.autograd import (
    DropoutKey,
    ExactArithmetic,
    SparseFeatures,
    arithmetic,
    dropout,
    widened,
)
from hpcgnn.comm import ProcessGrid
from hpcgnn.sparse import LocalCSR

N, F, H = 37, 91, 5


def features(dtype: str, *, precision: str = "float32") -> SparseFeatures:
    rng = np.random.default_rng(53)
    rows = sp.random(N, F, 0.05, "csr", np.float64, rng).tolil()
    # One row has no values, and one is full.
    rows[3] = 0
    rows[11] = rng.normal(size=F)
    matrix = rows.tocsr()
    matrix.sort_indices()
    parts = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)
    return SparseFeatures.of(LocalCSR(*parts, matrix.data.astype(dtype), (N, F)), precision)


def written_out(rows: SparseFeatures) -> torch.Tensor:
    matrix = rows.matrix
    dense = sp.csr_matrix((matrix.values, matrix.indices, matrix.indptr), shape=rows.shape)
    return torch.from_numpy(dense.toarray()).to(rows.dtype)


def tolerance(rows: torch.Tensor) -> float:
    return {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[rows.dtype]


ROWS = [("float64", "float32"), ("float32", "float32"), ("float32", "bfloat16")]


@pytest.mark.parametrize(("dtype", "precision"), ROWS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_maps_and_their_gradients(dtype: str, precision: str, with_bias: bool) -> None:
    rows, rng = features(dtype, precision=precision), np.random.default_rng(5)
    results = []
    for x in (rows, written_out(rows)):
        rng = np.random.default_rng(5)
        weight = torch.from_numpy(rng.normal(size=(H, F)).astype(dtype)).requires_grad_()
        bias = torch.from_numpy(rng.normal(size=H).astype(dtype)).requires_grad_()
        factors = torch.from_numpy(rng.normal(size=(N, H)).astype(dtype))
        out = arithmetic().linear(x, weight, bias if with_bias else None)
        assert out.dtype == rows.dtype
        (out.to(factors.dtype) * factors).sum().backward()
        results.append([out.detach(), weight.grad, bias.grad] if with_bias else [out, weight.grad])
    for mine, theirs in zip(*results, strict=True):
        assert mine is not None
        assert theirs is not None
        within = tolerance(rows)
        torch.testing.assert_close(mine, theirs, rtol=within, atol=within * 10)


@pytest.mark.parametrize("p", [0.0, 0.3, 0.9])
@pytest.mark.parametrize(("dtype", "precision"), ROWS[:2])
def test_dropout_draws_what_dense_rows_draw(dtype: str, precision: str, p: float) -> None:
    rows = features(dtype, precision=precision)
    ids = np.random.default_rng(8).integers(0, 1 << 62, N)
    key = DropoutKey(7, 3, 1)
    dropped = dropout(rows, ids, key, p)
    assert isinstance(dropped, SparseFeatures)
    expected = np.empty((N, F), dtype)
    kernels.dropout_rows(written_out(rows).numpy(), ids, key.word(), p, expected)
    np.testing.assert_array_equal(written_out(dropped).numpy(), expected)
    assert dropout(rows, ids, None, p) is rows


@pytest.mark.parametrize(("dtype", "precision"), ROWS)
def test_widened_rows_stay_sparse(dtype: str, precision: str) -> None:
    rows = features(dtype, precision=precision)
    wide = widened(rows)
    assert isinstance(wide, SparseFeatures)
    assert wide.dtype == getattr(torch, dtype)
    assert torch.equal(wide.written_out(), written_out(rows).to(wide.dtype))


def test_rows_are_chosen_in_any_order() -> None:
    rows = features("float32")
    for chosen in (torch.tensor([11, 0, 3, 36, 11]), torch.empty(0, dtype=torch.int64)):
        some = rows[chosen]
        assert isinstance(some, SparseFeatures)
        assert torch.equal(written_out(some), written_out(rows)[chosen])
    assert torch.equal(rows[:7].written_out(), written_out(rows)[:7])
    assert torch.equal(rows.written_out(), written_out(rows))
    other = torch.ones(N, F)
    assert torch.equal(other + rows, other + written_out(rows))


@pytest.mark.parametrize("count", [N, 0])
def test_dense_columns_go_behind(count: int) -> None:
    rows = features("float64")[:count]
    columns = torch.from_numpy(np.random.default_rng(2).normal(size=(count, 3)))
    columns[:3, 1] = 0
    joined = torch.cat([rows, columns, columns], dim=1)
    assert isinstance(joined, SparseFeatures)
    expected = torch.cat([written_out(rows), columns, columns], dim=1)
    assert torch.equal(joined.written_out(), expected)
    assert torch.equal(joined.clone().written_out(), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_products_are_the_bits_of_dense_rows(comm: MPI.Intracomm, dtype: str) -> None:
    rng = np.random.default_rng(9)
    # One column has more entries than a run may have, and one has none.
    matrix = sp.random(2000, 7, 0.5, "csr", np.float64, rng).tolil()
    matrix[:, 3] = 0
    matrix = matrix.tocsr()
    matrix.sort_indices()
    parts = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)
    whole = SparseFeatures.of(LocalCSR(*parts, matrix.data.astype(dtype), matrix.shape))
    upper = torch.from_numpy(rng.normal(size=(2000, H)).astype(dtype))
    weight = torch.from_numpy(rng.normal(size=(7, H)).astype(dtype))
    mine = slice(comm.rank * 2000 // comm.size, (comm.rank + 1) * 2000 // comm.size)
    rows = whole[mine]
    with ProcessGrid(comm) as grid:
        exact = ExactArithmetic(grid)
        found, expected = (exact.contract(upper[mine], x) for x in (rows, rows.written_out()))
        assert torch.equal(found, expected)
        product = exact.product(rows, weight)
        assert torch.equal(product, exact.product(rows.written_out(), weight))
    right = upper.double().t() @ whole.written_out().double()
    torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-3)


def test_what_would_fill_them_is_refused() -> None:
    rows = features("float32")
    with pytest.raises(TypeError, match=r"aten\.cat\S* does not work with sparse features after"):
        torch.cat([rows, rows], dim=1)
    both = torch.cat([rows, rows[:5]])
    assert torch.equal(both.written_out()[37:], rows.written_out()[:5])
    with pytest.raises(TypeError, match=r"aten\.mul\S* does not work with sparse features"):
        torch.mul(rows, rows)
    assert repr(rows).startswith("SparseFeatures((37, 91), ")


def test_bytes_are_those_of_offsets_columns_and_values() -> None:
    for dtype, value_bytes in (("float32", 4), ("float64", 8)):
        rows = features(dtype)
        assert rows.nbytes == 8 * (N + 1) + (4 + value_bytes) * rows.matrix.nnz
