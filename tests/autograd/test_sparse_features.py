"""Sparse features: maps, gradients and dropout are those of the rows written out."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpcgnn import kernels
from hpcgnn.autograd import DropoutKey, SparseFeatures, arithmetic, dropout
from hpcgnn.sparse import LocalCSR

N, F, H = 37, 91, 5


def features(dtype: str, *, precision: str = "float32") -> SparseFeatures:
    rng = np.random.default_rng(53)
    rows = sp.random(N, F, 0.05, "csr", np.float64, rng).tolil()
    # A row without values, and one that is full.
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


def test_what_would_fill_them_is_refused() -> None:
    rows = features("float32")
    with pytest.raises(TypeError, match=r"aten\.cat\S* does not work with sparse features"):
        torch.cat([rows, rows])
    assert repr(rows).startswith("SparseFeatures((37, 91), ")
