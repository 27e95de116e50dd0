"""Cross entropy of softmaxes equals torch's in float64, for every instruction set."""

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
    losses, found = np.empty(2001, dtype), np.empty_like(logits)
    targets = kernels.SoftmaxTargets(logits, labels, smoothing)
    kernels.softmax_loss(targets, losses, found, factors=factors, scale=3.0, threads=2, isa=isa)
    np.testing.assert_allclose(losses, each.detach(), rtol=tolerance * 10, atol=tolerance)
    alone = np.empty(2001, dtype)
    kernels.softmax_loss(targets, alone, isa=isa)
    np.testing.assert_array_equal(alone, losses)
    np.testing.assert_allclose(found, exact.grad, rtol=tolerance * 10, atol=tolerance)
    # The gradient may replace the logits.
    more = {"factors": factors, "scale": 3.0, "threads": 2, "isa": isa}
    kernels.softmax_loss(targets, alone, logits, **more)
    np.testing.assert_array_equal(alone, losses)
    np.testing.assert_array_equal(logits, found)


@pytest.mark.parametrize("isa", ISAS)
def test_small_losses_of_large_logits_are_precise(isa: str) -> None:
    logits = np.array([[80.0, 70, 60], [5000, 4990, 0]], np.float32)
    losses = np.empty(2, np.float32)
    kernels.softmax_loss(kernels.SoftmaxTargets(logits, np.zeros(2, np.int64)), losses, isa=isa)
    expected = np.log1p([np.exp(-10) + np.exp(-20), np.exp(-10)])
    np.testing.assert_allclose(losses, expected, rtol=5e-3)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_stay_in_their_row(isa: str, bad: float) -> None:
    logits = np.zeros((3, 20), np.float32)
    logits[1, 17] = bad
    losses, found = np.empty(3, np.float32), np.empty_like(logits)
    kernels.softmax_loss(kernels.SoftmaxTargets(logits, np.full(3, 2)), losses, found, isa=isa)
    assert np.isnan(losses).tolist() == [False, True, False]
    assert np.isnan(found).any(axis=1).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("labels", "gradient", "fault"),
    [
        (np.array([0, 4]), np.empty((2, 4)), "labels must be columns of the logits"),
        (np.array([0, -1]), np.empty((2, 4)), "labels must be columns of the logits"),
        (np.array([0]), np.empty((2, 4)), "labels must have one entry for each row"),
        (np.array([0, 1]), np.empty((2, 3)), "gradient must have the dtype and rows of the logits"),
        (np.array([0, 1]), np.empty((2, 4), np.float32), "gradient must have the dtype and rows"),
    ],
)
def test_wrong_operands_are_refused(labels: np.ndarray, gradient: np.ndarray, fault: str) -> None:
    targets = kernels.SoftmaxTargets(np.zeros((2, 4)), labels)
    with pytest.raises(ValueError, match=fault):
        kernels.softmax_loss(targets, np.empty(2), gradient)
