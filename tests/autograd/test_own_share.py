"""Aggregates plus a share of own rows equal their formula, for any choice of own rows."""

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcgnn.autograd import Epilogue, add_own_share, map_with_share
from hpcgnn.autograd.numerics import mixed
from hpcgnn.operator import OperatorSize
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array


class DenseSums:
    """A dense matrix."""

    trace = TraceRecorder.off()

    def __init__(self, matrix: Array) -> None:
        self._matrix, self.shape = matrix, matrix.shape
        self.size = OperatorSize(*matrix.shape, np.count_nonzero(matrix), 0)

    def apply(self, x: Array) -> Array:
        return self._matrix @ x

    def apply_transpose(self, gradient: Array) -> Array:
        return self._matrix.T @ gradient


@pytest.mark.parametrize("kept", [None, [4, 0, 2]])
def test_equals_its_formula_and_its_gradients(kept: list[int] | None) -> None:
    rng = np.random.default_rng(1)
    operator = DenseSums(rng.normal(size=(6 if kept is None else 3, 6)))
    rows, share, bias = (
        torch.from_numpy(rng.normal(size=size)).requires_grad_() for size in ((6, 4), (), (4,))
    )

    def ours(rows: Tensor, share: Tensor, bias: Tensor) -> Tensor:
        own = rows if kept is None else rows[kept]
        return add_own_share(operator, rows, (share, own), bias, Epilogue(np.arange(len(own))))

    own = rows if kept is None else rows[kept]
    expected = (torch.from_numpy(operator._matrix) @ rows + share * own + bias).relu()
    torch.testing.assert_close(ours(rows, share, bias), expected)
    assert torch.autograd.gradcheck(ours, (rows, share, bias))
    wanted = torch.autograd.grad(expected.square().sum(), (rows, share, bias))
    found = torch.autograd.grad(ours(rows, share, bias).square().sum(), (rows, share, bias))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("kept", [None, [4, 0, 2]])
def test_maps_equal_their_formula(monkeypatch: pytest.MonkeyPatch, kept: list[int] | None) -> None:
    monkeypatch.setattr(mixed, "_CACHED_ROWS", 2)
    rng = np.random.default_rng(2)
    operator = DenseSums(rng.normal(size=(6 if kept is None else 3, 6)))
    x, matrix = torch.from_numpy(rng.normal(size=(6, 4))), torch.from_numpy(operator._matrix)
    own = x if kept is None else x[kept]
    parameters = [
        torch.from_numpy(rng.normal(size=size)).requires_grad_() for size in ((), (5, 4), (5,))
    ]
    share, weight, bias = parameters
    expected = ((matrix @ x + share * own) @ weight.t() + bias).relu()
    epilogue = Epilogue(np.arange(len(own)))
    found = map_with_share(operator, x, (share, own), weight, bias, epilogue)
    torch.testing.assert_close(found, expected)
    wanted = torch.autograd.grad(expected.square().sum(), parameters)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), parameters), wanted)
