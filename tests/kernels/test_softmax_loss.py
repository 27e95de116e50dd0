"""Cross entropy of softmaxes against torch's in float64, in every instruction set."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from hpcgnn import kernels

ISAS = kernels.available_isas()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("float64", 1e-14)])
@pytest.mark.parametrize("width", [1, 2, 7, 16, 40, 67])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_losses_and_gradients(
    isa: str, dtype: str, tolerance: float, width: int, smoothing: float
) -> None:
    random = np.random.default_rng(width)
    logits = (10 * random.standard_normal((2001, width))).astype(dtype)
    labels, factors = random.integers(width, size=2001), random.random(2001).astype(dtype)
    exact = torch.from_numpy(logits.astype(np.float64)).requires_grad_()
    each = functional.cross_entropy(
        exact, torch.from_numpy(labels), reduction="none", label_smoothing=smoothing
    )
    (each @ torch.from_numpy(factors.astype(np.float64)) * 3).backward()
    losses, state = np.empty(2001, dtype), np.empty((2001, 2), dtype)
    targets = kernels.SoftmaxTargets(logits, labels, smoothing)
    kernels.softmax_loss(targets, losses, state, threads=2, isa=isa)
    np.testing.assert_allclose(losses, each.detach(), rtol=tolerance * 10, atol=tolerance)
    found = np.empty_like(logits)
    kernels.softmax_loss_gradient(
        targets, state, found, factors=factors, scale=3.0, threads=2, isa=isa
    )
    np.testing.assert_allclose(found, exact.grad, rtol=tolerance * 10, atol=tolerance)


@pytest.mark.parametrize("isa", ISAS)
def test_small_losses_of_large_logits_are_precise(isa: str) -> None:
    logits = np.array([[80.0, 70, 60], [5000, 4990, 0]], np.float32)
    losses, state = np.empty(2, np.float32), np.empty((2, 2), np.float32)
    targets = kernels.SoftmaxTargets(logits, np.zeros(2, np.int64))
    kernels.softmax_loss(targets, losses, state, isa=isa)
    expected = np.log1p([np.exp(-10) + np.exp(-20), np.exp(-10)])
    np.testing.assert_allclose(losses, expected, rtol=5e-3)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_stay_in_their_row(isa: str, bad: float) -> None:
    logits = np.zeros((3, 20), np.float32)
    logits[1, 17] = bad
    losses, state = np.empty(3, np.float32), np.empty((3, 2), np.float32)
    targets = kernels.SoftmaxTargets(logits, np.full(3, 2))
    kernels.softmax_loss(targets, losses, state, isa=isa)
    assert np.isnan(losses).tolist() == [False, True, False]
    found = np.empty_like(logits)
    kernels.softmax_loss_gradient(targets, state, found, isa=isa)
    assert np.isnan(found).any(axis=1).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("labels", "state", "fault"),
    [
        (np.array([0, 4]), np.empty((2, 2)), "labels must be columns of the logits"),
        (np.array([0, -1]), np.empty((2, 2)), "labels must be columns of the logits"),
        (np.array([0]), np.empty((2, 2)), "labels must have one entry for each row"),
        (np.array([0, 1]), np.empty((2, 3)), "state must have the dtype and rows of the logits"),
        (np.array([0, 1]), np.empty((2, 2), np.float32), "state must have the dtype and rows"),
    ],
)
def test_wrong_operands_are_refused(labels: np.ndarray, state: np.ndarray, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        kernels.softmax_loss(kernels.SoftmaxTargets(np.zeros((2, 4)), labels), np.empty(2), state)
