import weakref

import numpy as np
import pytest
import torch

from hpcgnn.autograd import Epilogue, arithmetic, relu, relu_, rematerialised
from hpcgnn.autograd.linear.products import RowProducts
from hpcgnn.autograd.numerics import plain
from hpcgnn.autograd.numerics.plain import with_epilogue


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


HOLDERS = {
    "nobody": lambda _: None,
    "result": lambda hidden: hidden,
    "detached": lambda hidden: hidden.detach(),
    "view": lambda hidden: hidden.detach()[7:9],
    "array": lambda hidden: hidden.detach().numpy(),
    "graph": lambda _: None,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_result_is_overwritten_only_by_its_last_use(holder: str) -> None:
    """The gradient before an epilogue takes the memory of the result that nobody reads again."""
    torch.manual_seed(3)
    first, last = torch.randn(50, 4).double(), torch.randn(6, 50).double()
    first.requires_grad_(), last.requires_grad_()
    rows = torch.randn(300, 4).double()
    mapped = arithmetic().linear(rows, first)
    places: list[int] = []
    mapped.register_hook(lambda gradient: places.append(gradient.data_ptr()))
    hidden = with_epilogue(mapped, None, Epilogue(np.arange(300)))
    place, before = hidden.data_ptr(), hidden.detach().clone()
    kept = HOLDERS[holder](hidden)
    loss = arithmetic().linear(hidden, last).square().sum()
    del hidden, mapped
    found = torch.autograd.grad(loss, (first, last), retain_graph=holder == "graph")
    assert (places[0] == place) == (holder == "nobody")
    if kept is not None:
        expected = before[7:9] if holder == "view" else before
        assert torch.equal(torch.as_tensor(kept), expected)
    if holder == "graph":
        again = torch.autograd.grad(loss, (first, last))
        assert all(torch.equal(*pair) for pair in zip(found, again, strict=True))
    whole = torch.relu(rows @ first.t()) @ last.t()
    wanted = torch.autograd.grad(whole.square().sum(), (first, last))
    for each, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(each, other)


@pytest.mark.parametrize("num_rows", [0, 900])
def test_products_of_rows_are_never_whole_before_an_epilogue(
    monkeypatch: pytest.MonkeyPatch, num_rows: int
) -> None:
    monkeypatch.setattr(plain, "_COMPUTED_BYTES", 8000)
    lengths = []
    rows_of = RowProducts.__getitem__
    monkeypatch.setattr(
        RowProducts,
        "__getitem__",
        lambda products, rows: lengths.append(len(found := rows_of(products, rows))) or found,
    )
    torch.manual_seed(3)
    mapped = torch.randn(num_rows, 20, requires_grad=True)
    bias = torch.randn(20, requires_grad=True)
    narrow, matrix = torch.randn(num_rows, 3), torch.randn(3, 20)
    products = RowProducts.of(narrow, matrix)
    products.factors.append((narrow, matrix))
    hidden = with_epilogue(mapped * 1, bias, Epilogue(np.arange(num_rows)))
    found = torch.autograd.grad(hidden, (mapped, bias), products)
    positive = mapped + bias > 0
    wanted = torch.where(positive, narrow @ matrix, torch.zeros(()))
    torch.testing.assert_close(found[0], wanted)
    torch.testing.assert_close(found[1], wanted.sum(0), rtol=1e-5, atol=1e-3)
    assert lengths == [100] * (num_rows // 100) or lengths == [0]
