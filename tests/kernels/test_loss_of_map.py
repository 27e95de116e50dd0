"""Losses of a map, ``x Wᵀ + b``, and their gradients equal torch's in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hpcgnn import kernels

ISAS = kernels.available_isas()
ROWS = 3001
"""More rows than one piece has, and no whole number of blocks."""


def _operands(width: int, inner: int, dtype: str) -> tuple[list[np.ndarray], list[Tensor]]:
    """Return rows, a weight and a bias, as the kernel takes them and in float64."""
    random = np.random.default_rng(width)
    wide = "float32" if dtype == "bfloat16" else dtype
    rows, weight = random.standard_normal((ROWS, inner)), random.standard_normal((width, inner))
    arrays = [each.astype(wide) for each in (rows, weight / inner**0.5, random.random(width))]
    if dtype == "bfloat16":
        arrays[0] = (arrays[0].view(np.uint32) >> 16).astype(np.uint16)
    exact = [torch.from_numpy(_as_float64(each)).requires_grad_() for each in arrays]
    return arrays, exact


def _as_float64(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def _like(arrays: list[np.ndarray]) -> kernels.LogitMap:
    return kernels.LogitMap(*(np.full_like(each, 1) for each in arrays))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-13), ("bfloat16", 1e-5)]
)
@pytest.mark.parametrize(("inner", "width"), [(16, 40), (40, 7), (1, 2), (300, 33)])
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_losses_and_gradients(
    isa: str, dtype: str, tolerance: float, inner: int, width: int, loss: str
) -> None:
    random = np.random.default_rng(inner)
    arrays, exact = _operands(width, inner, dtype)
    labels, factors = random.integers(width, size=ROWS), random.random(ROWS)
    wanted, logits = random.random((ROWS, width)), functional.linear(*exact)
    if loss == "softmax":
        each = functional.cross_entropy(
            logits, torch.from_numpy(labels), reduction="none", label_smoothing=0.3
        )
    else:
        each = functional.binary_cross_entropy_with_logits(
            logits, torch.from_numpy(wanted), reduction="none"
        ).sum(1)
    (each @ torch.from_numpy(factors) * 3).backward()

    wide = arrays[1].dtype
    logit_map, found = kernels.LogitMap(*arrays), _like(arrays)
    losses, again = np.empty((2, ROWS), wide)

    def write(into: np.ndarray, gradient: kernels.LogitMap, threads: int) -> None:
        more = {"factors": factors.astype(wide), "scale": 3.0, "threads": threads, "isa": isa}
        if loss == "softmax":
            targets = kernels.SoftmaxTargets(logit_map, labels, 0.3)
            kernels.softmax_loss(targets, into, gradient, **more)
        else:
            targets = kernels.SigmoidTargets(logit_map, wanted.astype(wide))
            kernels.sigmoid_loss(targets, into, gradient, **more)

    write(losses, found, 1)
    np.testing.assert_allclose(losses, each.detach(), rtol=tolerance * 10, atol=tolerance)
    # Rows of 16 bits have a gradient of 16 bits.
    tolerances = (2**-8 if dtype == "bfloat16" else tolerance, tolerance, tolerance)
    for array, expected, most in zip(
        (found.rows, found.weight, found.bias), exact, tolerances, strict=True
    ):
        error = abs(_as_float64(array) - expected.grad.numpy()).max()
        assert error <= most * expected.grad.abs().max()
    # The bits depend neither on threads nor on which gradients are wanted.
    second = _like(arrays)
    write(again, second, 3)
    np.testing.assert_array_equal(again, losses)
    np.testing.assert_array_equal(second.rows, found.rows)
    np.testing.assert_array_equal(second.weight, found.weight)
    np.testing.assert_array_equal(second.bias, found.bias)
    second = replace(_like(arrays), rows=None)
    write(again, second, 2)
    np.testing.assert_array_equal(second.weight, found.weight)


@pytest.mark.parametrize("rows", [0, 1, 47, 193])
def test_few_rows_and_no_bias(rows: int) -> None:
    random = np.random.default_rng(rows)
    x, weight = random.standard_normal((rows, 5)), random.standard_normal((4, 5))
    labels, losses = random.integers(4, size=rows), np.empty(rows)
    found = kernels.LogitMap(np.ones_like(x), np.ones_like(weight))
    kernels.softmax_loss(kernels.SoftmaxTargets(kernels.LogitMap(x, weight), labels), losses, found)
    exact = [torch.from_numpy(each).requires_grad_() for each in (x, weight)]
    each = functional.cross_entropy(
        functional.linear(*exact), torch.from_numpy(labels), reduction="none"
    )
    each.sum().backward()
    np.testing.assert_allclose(losses, each.detach(), rtol=1e-12)
    np.testing.assert_allclose(found.rows, exact[0].grad, atol=1e-12)
    np.testing.assert_allclose(found.weight, exact[1].grad, atol=1e-12)


def test_maps_of_no_columns() -> None:
    empty = kernels.LogitMap(np.ones((3, 0)), np.ones((0, 0)))
    losses = np.ones(3)
    kernels.sigmoid_loss(kernels.SigmoidTargets(empty, np.ones((3, 0))), losses, empty)
    assert losses.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"weight": np.ones((4, 4))}, "weight must have a column for each column of rows"),
        ({"weight": np.ones((4, 3), np.float32)}, "weight must be float64"),
        ({"bias": np.ones(3)}, "bias must have an entry for each row of weight"),
        ({"bias": None}, "a bias and its gradient belong together"),
        ({"rows": None}, "a map has rows"),
        ({"rows": np.ones((3, 3))}, "losses must have the dtype and rows of the logits"),
    ],
)
def test_wrong_maps_are_refused(change: dict[str, np.ndarray | None], fault: str) -> None:
    right = kernels.LogitMap(np.ones((2, 3)), np.ones((4, 3)), np.ones(4))
    wrong = replace(right, **change)
    targets = kernels.SoftmaxTargets(wrong, np.array([0, 1]))
    gradient = kernels.LogitMap(
        *(
            None if each is None else np.empty_like(each)
            for each in (wrong.rows, wrong.weight, np.ones(4) if wrong.bias is None else wrong.bias)
        )
    )
    with pytest.raises((TypeError, ValueError), match=fault):
        kernels.softmax_loss(targets, np.empty(2), gradient)


@pytest.mark.parametrize("name", ["rows", "weight", "bias"])
def test_gradients_must_be_like_the_operands(name: str) -> None:
    logit_map = kernels.LogitMap(np.ones((2, 3)), np.ones((4, 3)), np.ones(4))
    gradient = replace(logit_map, **{name: np.ones(6).reshape((3, 2) if name != "bias" else 6)})
    targets = kernels.SigmoidTargets(logit_map, np.ones((2, 4)))
    with pytest.raises(ValueError, match=name):
        kernels.sigmoid_loss(targets, np.empty(2), gradient)


def test_a_map_has_the_gradient_of_a_map() -> None:
    targets = kernels.SoftmaxTargets(kernels.LogitMap(np.ones((2, 3)), np.ones((4, 3))), np.ones(2))
    with pytest.raises(TypeError, match="gradient of a map"):
        kernels.softmax_loss(targets, np.empty(2), np.empty((2, 4)))
