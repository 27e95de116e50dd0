"""Cross entropy of sigmoids equals torch's in float64, for every instruction set."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from hpcgnn import kernels
from hpcgnn.autograd.losses.sigmoid import sigmoid_entropy_sum

ISAS = kernels.available_isas()
ROWS = 301


def losses_of(logits: np.ndarray, targets: np.ndarray, isa: str) -> np.ndarray:
    losses = np.empty(len(logits), logits.dtype)
    kernels.sigmoid_loss(kernels.SigmoidTargets(logits, targets), losses, threads=2, isa=isa)
    return losses


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("float64", 1e-14)])
@pytest.mark.parametrize("width", [1, 2, 7, 16, 40, 121, 2000])
@pytest.mark.parametrize("spread", [0.01, 10.0])
def test_losses_and_gradients(
    isa: str, dtype: str, tolerance: float, width: int, spread: float
) -> None:
    random = np.random.default_rng(width)
    logits = (spread * random.standard_normal((ROWS, width))).astype(dtype)
    targets = np.where(random.random((ROWS, width)) < 0.2, 0.3, random.integers(2, size=width))
    targets, factors = targets.astype(dtype), random.random(ROWS).astype(dtype)
    exact = torch.from_numpy(logits.astype(np.float64)).requires_grad_()
    each = functional.binary_cross_entropy_with_logits(
        exact, torch.from_numpy(targets.astype(np.float64)), reduction="none"
    ).sum(1)
    (each @ torch.from_numpy(factors.astype(np.float64)) * 3).backward()
    found = losses_of(logits, targets, isa)
    np.testing.assert_allclose(found, each.detach(), rtol=tolerance * 10, atol=tolerance)
    gradient, again = np.empty_like(logits), np.empty_like(found)
    operands = kernels.SigmoidTargets(logits, targets), again, gradient
    kernels.sigmoid_loss(*operands, factors=factors, scale=3.0, threads=2, isa=isa)
    np.testing.assert_array_equal(again, found)
    np.testing.assert_allclose(gradient, exact.grad, rtol=tolerance * 10, atol=tolerance)
    # The gradient may replace the logits.
    kernels.sigmoid_loss(operands[0], again, logits, factors=factors, scale=3.0, isa=isa)
    np.testing.assert_array_equal(again, found)
    np.testing.assert_array_equal(logits, gradient)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1.0, 2.5, 2.8, 5.0, 8.0, 20.0, 60.0])
def test_small_losses_of_large_logits_are_precise(isa: str, dtype: str, size: float) -> None:
    targets = np.tile(np.array([0, 1], dtype), (3, 40))
    logits = np.where(targets > 0, size, -size).astype(dtype)
    found = losses_of(logits, targets, isa)
    expected = 80 * np.log1p(np.exp(-size))
    # The loss of a right answer is the difference of two numbers as large as its logit.
    rounding = 80 * size * np.finfo(dtype).eps
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=rounding)
    wrong_way = losses_of(-logits, np.zeros_like(logits), isa)
    assert np.isfinite(wrong_way).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("column", [3, 17])
def test_numbers_that_are_none_stay_in_their_row(isa: str, bad: float, column: int) -> None:
    logits, targets = np.zeros((3, 20), np.float32), np.zeros((3, 20), np.float32)
    logits[1, column] = bad
    assert np.isfinite(losses_of(logits, targets, isa)).tolist() == [True, False, True]
    found, operands = np.empty_like(logits), kernels.SigmoidTargets(logits, targets)
    kernels.sigmoid_loss(operands, np.empty(3, np.float32), found, isa=isa)
    assert np.isnan(found).any(axis=1).tolist() == [False, bool(np.isnan(bad)), False]


def test_wrong_operands_are_refused() -> None:
    logits = np.zeros((2, 4))
    for targets in (np.zeros((2, 3)), np.zeros((3, 4)), np.zeros((2, 4), np.float32)):
        with pytest.raises(ValueError, match="targets must have the dtype and rows of the logits"):
            losses_of(logits, targets, "auto")


@pytest.mark.parametrize("weighted", [False, True])
def test_differentiable_sum(weighted: bool) -> None:
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(7, 5, dtype=torch.float64, generator=draw, requires_grad=True)
    target = torch.rand(7, 5, generator=draw)
    factors = torch.rand(7, 1, dtype=torch.float64, generator=draw) if weighted else None
    found = sigmoid_entropy_sum(logits, target, factors)
    expected = functional.binary_cross_entropy_with_logits(
        logits, target.double(), weight=factors, reduction="sum"
    )
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(3 * each, logits)[0] for each in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_no_rows_and_no_columns() -> None:
    for shape in ((0, 5), (4, 0)):
        logits = torch.zeros(shape, requires_grad=True)
        total = sigmoid_entropy_sum(logits, torch.zeros(shape))
        total.backward()
        assert total == 0
