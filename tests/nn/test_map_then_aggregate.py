"""Mapping rows before or after they are aggregated gives the same."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from hpcgnn.autograd import SparseFeatures
from hpcgnn.nn.map_then_aggregate import mapped_first
from hpcgnn.sparse import LocalCSR

ROWS, COUNT, OUT = 11, 3, 4


def features(form: str, width: int) -> tuple[Tensor, Tensor]:
    """Return rows in a form, and the same as plain rows."""
    matrix = sp.random(ROWS, width, 0.3, "csr", np.float64, np.random.default_rng(1))
    matrix.sort_indices()
    dense = torch.from_numpy(matrix.toarray())
    if form == "sparse":
        parts = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data
        return SparseFeatures.of(LocalCSR(*parts, matrix.shape)), dense
    return dense.clone().requires_grad_(form == "hidden"), dense


@pytest.mark.parametrize(
    ("form", "width", "columns"),
    [
        ("dense", 2 * COUNT * OUT, 2 * COUNT * OUT),
        ("dense", 2 * COUNT * OUT + 1, COUNT * OUT),
        ("hidden", COUNT * OUT, COUNT * OUT),
        ("hidden", COUNT * OUT + 1, COUNT * OUT),
        ("hidden", COUNT * OUT - 1, COUNT * OUT - 1),
        ("sparse", COUNT * OUT + 1, COUNT * OUT),
        ("sparse", COUNT * OUT - 1, COUNT * OUT - 1),
    ],
)
def test_the_fewer_columns_are_aggregated(form: str, width: int, columns: int) -> None:
    draw = torch.Generator().manual_seed(2)
    x, dense = features(form, width)
    maps = torch.randn(COUNT, width, OUT, dtype=torch.float64, generator=draw, requires_grad=True)
    means = torch.randn(COUNT, 7, ROWS, dtype=torch.float64, generator=draw)
    rows, choices = mapped_first(x, maps)
    assert rows.shape == (ROWS, columns)
    found = means @ rows @ choices
    expected = means @ dense @ maps
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradient = torch.randn(found.shape, dtype=torch.float64, generator=draw)
    known = torch.autograd.grad(expected, maps, gradient)[0]
    ours = torch.autograd.grad(found, maps, gradient)[0]
    torch.testing.assert_close(ours, known, rtol=1e-12, atol=1e-12)
