import pytest
import torch
from torch.nn import functional

from hpcgnn.autograd import cross_entropies, cross_entropy_sum


@pytest.mark.parametrize("num_rows", [0, 1, 57])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_values_and_gradients(num_rows: int, smoothing: float, weighted: bool) -> None:
    torch.manual_seed(5)
    logits = (20 * torch.randn(num_rows, 6, dtype=torch.float64)).requires_grad_()
    labels = torch.randint(6, (num_rows,))
    factors = torch.rand(num_rows, dtype=torch.float64) if weighted else None
    each = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    expected = (each if factors is None else each * factors).sum()
    (for_logits,) = torch.autograd.grad(expected / 7, logits)
    result = cross_entropy_sum(logits, labels, smoothing, factors, 3.5)
    torch.testing.assert_close(result, expected / 3.5, rtol=1e-12, atol=1e-12)
    (found,) = torch.autograd.grad(result / 2, logits)
    torch.testing.assert_close(found, for_logits, rtol=1e-12, atol=1e-13)


def test_large_logits_stay_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]], requires_grad=True)
    loss = cross_entropy_sum(logits, torch.tensor([0, 0]))
    loss.backward()
    assert loss.item() == 2e4
    assert torch.equal(logits.grad, torch.tensor([[0.0, 0, 0], [-1, 1, 0]]))


@pytest.mark.parametrize("num_classes", [1, 3, 7, 40])
def test_the_losses_of_rows_do_not_depend_on_other_rows(num_classes: int) -> None:
    generator = torch.Generator().manual_seed(7)
    logits = 9 * torch.randn(301, num_classes, dtype=torch.float64, generator=generator)
    labels = torch.randint(num_classes, (301,), generator=generator)
    losses = cross_entropies(logits.requires_grad_(), labels)
    assert not losses.requires_grad
    expected = functional.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-12, atol=1e-12)
    some = torch.rand(301, generator=generator) < 0.4
    assert torch.equal(cross_entropies(logits[some], labels[some]), losses[some])
    assert cross_entropy_sum(logits[some], labels[some]).item() == losses[some].sum().item()
