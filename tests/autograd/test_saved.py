import weakref

import numpy as np
import pytest
import torch

from hpcgnn.autograd import relu, relu_, rematerialised


@pytest.mark.parametrize("again", [False, True])
def test_what_is_computed_again_does_not_wait(again: bool) -> None:
    torch.manual_seed(3)
    first, last = torch.nn.Linear(20, 64), torch.nn.Linear(64, 5)
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(400, 20))).float()
    out = first(x)
    hidden, waiting = relu(out), out.detach()
    gone = weakref.ref(hidden.untyped_storage())
    with rematerialised((hidden, (lambda: relu(waiting)) if again else None)):
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


def test_rows_of_another_type_are_saved_where_there_are_none() -> None:
    """Empty tensors share one address: a rank without nodes confused them."""
    narrow = torch.zeros(0, 3, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.ones(3, 1, requires_grad=True)
    with rematerialised((narrow, lambda: torch.zeros(0, 3, dtype=torch.bfloat16))):
        (narrow.float() @ weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[0], [0], [0]]
