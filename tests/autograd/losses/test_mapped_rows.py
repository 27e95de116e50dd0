from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hpcgnn.autograd import WIDENED, MappedRows, arithmetic, cross_entropy_sum, late_maps, take_rows
from hpcgnn.autograd.losses import row_loss
from hpcgnn.autograd.numerics import mixed

LossOf = Callable[[Tensor], Tensor]


def problem(
    kind: str, num_rows: int, classes: int, weighted: bool
) -> tuple[LossOf, Callable[[Tensor], Tensor]]:
    """Return a loss of this package and torch's."""
    generator = torch.Generator().manual_seed(num_rows)
    factors = torch.rand(num_rows, dtype=torch.float64, generator=generator) if weighted else None
    shares = 1.0 if factors is None else factors
    if kind == "softmax":
        labels = torch.randint(classes, (num_rows,), generator=generator)

        def theirs(logits: Tensor) -> Tensor:
            each = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=0.1)
            return (each * shares).sum() / 3

        return lambda logits: cross_entropy_sum(logits, labels, 0.1, factors, 3.0), theirs
    target = torch.rand(num_rows, classes, generator=generator)
    column = None if factors is None else factors[:, None]

    def theirs_of_labels(logits: Tensor) -> Tensor:
        each = functional.binary_cross_entropy_with_logits(
            logits, target.to(logits.dtype), reduction="none"
        )
        return (each.sum(1) * shares).sum() / 3

    return lambda logits: arithmetic().cross_entropies(
        logits, target, column, 3.0
    ), theirs_of_labels


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("num_rows", "width", "classes"), [(0, 3, 2), (1, 3, 1), (58, 16, 41)])
@pytest.mark.parametrize("way", ["chunks", "chunks in float32", "kernel"])
def test_equals_torch(
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    kind: str,
    weighted: bool,
    bias: bool,
    num_rows: int,
    width: int,
    classes: int,
) -> None:
    monkeypatch.setattr(row_loss, "_CHUNK_BYTES", 9 * 8 * (16 + 41))
    monkeypatch.setattr(row_loss, "maps_by_kernel", lambda *_: way == "kernel")
    dtype, tolerance = (torch.float64, 1e-12) if way == "chunks" else (torch.float32, 1e-5)
    ours, theirs = problem(kind, num_rows, classes, weighted)
    generator = torch.Generator().manual_seed(1)
    tensors = [
        torch.randn(*shape, dtype=dtype, generator=generator).requires_grad_()
        for shape in ((num_rows, width), (classes, width), (classes,))[: 2 + bias]
    ]
    rows, weight, *shift = tensors
    with late_maps():
        mapped = arithmetic().linear(rows, weight, shift[0] if bias else None, WIDENED)
    assert isinstance(mapped, MappedRows)
    assert mapped.shape == (num_rows, classes)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected, found = theirs(functional.linear(*exact)), ours(mapped)
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    wanted = torch.autograd.grad(2 * expected, exact)
    for each, right in zip(torch.autograd.grad(2 * found, tensors), wanted, strict=True):
        torch.testing.assert_close(each.double(), right, rtol=10 * tolerance, atol=tolerance)


@pytest.mark.parametrize("fast", [True, False])
def test_rows_of_16_bits_have_the_gradients_of_whole_logits(
    monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    monkeypatch.setattr(mixed, "bfloat16_is_fast", lambda: fast)
    monkeypatch.setattr(row_loss, "_CHUNK_BYTES", 4 * 7 * (16 + 40))
    torch.manual_seed(2)
    rows = torch.randn(29, 16).bfloat16().requires_grad_()
    parameters = torch.randn(40, 16).requires_grad_(), torch.randn(40).requires_grad_()
    labels = torch.randint(40, (29,))
    whole = cross_entropy_sum(arithmetic().linear(rows, *parameters, WIDENED), labels)
    with late_maps():
        mapped = arithmetic().linear(rows, *parameters, WIDENED)
    found = cross_entropy_sum(mapped, labels)
    torch.testing.assert_close(found, whole)
    wanted = torch.autograd.grad(whole, (rows, *parameters))
    gradients = torch.autograd.grad(found, (rows, *parameters))
    assert [each.dtype for each in gradients] == [torch.bfloat16, torch.float32, torch.float32]
    for ours, theirs in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2**-7, atol=2**-7)


def test_other_functions_read_all_of_it_or_raise() -> None:
    torch.manual_seed(3)
    rows, weight = torch.randn(3, 2, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    with late_maps():
        mapped = arithmetic().linear(rows, weight, None, WIDENED)
        assert isinstance(mapped, MappedRows)
        assert not isinstance(arithmetic().linear(rows, weight), MappedRows)
        with torch.no_grad():
            assert not isinstance(arithmetic().linear(rows, weight, None, WIDENED), MappedRows)
    whole = arithmetic().linear(rows, weight, None, WIDENED)
    assert not isinstance(whole, MappedRows)
    assert (mapped.shape, mapped.dtype, len(mapped)) == (whole.shape, whole.dtype, 3)
    for function in (torch.Tensor.exp, lambda x: 2 * x + x, lambda x: x[1:], lambda x: x.T @ x):
        wanted = torch.autograd.grad(function(whole).sum(), (rows, weight), retain_graph=True)
        found = torch.autograd.grad(function(mapped).sum(), (rows, weight), retain_graph=True)
        assert all(map(torch.equal, found, wanted))
    # A function of this package would not see that the map is differentiable.
    with pytest.raises(TypeError, match="of the result of a last map"):
        take_rows(mapped, np.array([2, 0], np.int32))
    some = mapped.chosen(lambda x: take_rows(x, np.array([2, 0], np.int32)))
    assert torch.equal(some + 0, whole[[2, 0]])
