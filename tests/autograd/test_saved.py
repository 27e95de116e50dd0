import weakref

import numpy as np
import pytest
import torch

from hpcgnn.autograd import activations_as, relu, relu_, rematerialised


def step(name: str, dtype: torch.dtype) -> tuple[torch.Tensor, list[torch.Tensor], int]:
    """Return the loss, gradients and the bytes of activations that waited for the backward pass."""
    torch.manual_seed(3)
    layers = torch.nn.Sequential(
        torch.nn.Linear(20, 64), torch.nn.ELU(), torch.nn.Linear(64, 64), torch.nn.Linear(64, 5)
    ).to(dtype)
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(400, 20))).to(dtype)
    with activations_as(name, (x, *layers.parameters())):
        loss = layers(x).square().mean()
    bytes_kept = sum(
        saved.untyped_storage().nbytes()
        for saved in kept_tensors(loss.grad_fn)
        if saved.shape[0] == len(x) and saved.data_ptr() != x.data_ptr()
    )
    loss.backward()
    return loss.detach(), [each.grad for each in layers.parameters()], bytes_kept


def kept_tensors(node: object) -> list[torch.Tensor]:
    """Return what a graph keeps, in the format in which it waits."""
    found, todo, seen = [], [node], set()
    while todo:
        each = todo.pop()
        if each is None or each in seen:
            continue
        seen.add(each)
        for name in dir(each):
            if name.startswith("_raw_saved") and not isinstance(getattr(each, name), tuple):
                data = getattr(each, name).data
                found += [data] if isinstance(data, torch.Tensor) and data.ndim == 2 else []
        todo += [parent for parent, _ in each.next_functions]
    return found


def test_float32_results_wait_in_half_the_bytes() -> None:
    loss, gradients, kept = step("native", torch.float32)
    narrow_loss, narrow_gradients, narrow_kept = step("bfloat16", torch.float32)
    assert kept >= 2 * 400 * 64 * 4
    assert narrow_kept <= 0.51 * kept
    # The forward pass does not change at all.
    assert torch.equal(loss, narrow_loss)
    for exact, rounded in zip(gradients, narrow_gradients, strict=True):
        assert not torch.equal(exact, rounded)
        torch.testing.assert_close(rounded, exact, rtol=0.02, atol=0.01 * float(exact.abs().max()))


def test_float64_is_never_narrowed() -> None:
    _, gradients, kept = step("native", torch.float64)
    _, others, others_kept = step("bfloat16", torch.float64)
    assert kept == others_kept
    assert all(torch.equal(one, other) for one, other in zip(gradients, others, strict=True))


@pytest.mark.parametrize("name", ["native", "bfloat16"])
def test_weights_are_not_rounded(name: str) -> None:
    weight = torch.nn.Parameter(torch.full((3, 3), 1 + 2.0**-20))
    x = torch.ones(2, 3, requires_grad=True)
    with activations_as(name, (x, weight)):
        out = (x @ weight.t()).sum()
    out.backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((2, 3), 3 * (1 + 2.0**-20)))


@pytest.mark.parametrize("again", [False, True])
def test_what_is_computed_again_does_not_wait(again: bool) -> None:
    torch.manual_seed(3)
    first, last = torch.nn.Linear(20, 64), torch.nn.Linear(64, 5)
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(400, 20))).float()
    out = first(x)
    hidden, waiting = relu(out), out.detach()
    gone = weakref.ref(hidden.untyped_storage())
    with rematerialised(hidden, (lambda: relu(waiting)) if again else None):
        loss = last(hidden).square().mean()
    del hidden
    assert (gone() is None) == again
    loss.backward()
    expected = torch.autograd.grad(
        last(torch.relu(first(x))).square().mean(), list(first.parameters())
    )
    for own, other in zip(first.parameters(), expected, strict=True):
        torch.testing.assert_close(own.grad, other)


def test_a_rectifier_in_place_keeps_one_array() -> None:
    torch.manual_seed(3)
    first, last = torch.nn.Linear(20, 64), torch.nn.Linear(64, 5)
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(400, 20))).float()
    out = first(x)
    place = out.data_ptr()
    hidden = relu_(out)
    assert hidden.data_ptr() == place
    last(hidden).square().mean().backward()
    expected = torch.autograd.grad(
        last(torch.relu(first(x))).square().mean(), list(first.parameters())
    )
    for own, other in zip(first.parameters(), expected, strict=True):
        torch.testing.assert_close(own.grad, other)


def test_a_rectifier_in_place_refuses_what_others_saved() -> None:
    out = torch.ones(3, 4, requires_grad=True).exp()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        relu_(out).sum().backward()


def test_inputs_in_16_bits_are_not_computed_again() -> None:
    x = torch.ones(3, 4, requires_grad=True)
    calls: list[int] = []
    with activations_as("bfloat16", ()), rematerialised(x, lambda: calls.append(1) or x):
        loss = x.square().sum()
    loss.backward()
    assert not calls
