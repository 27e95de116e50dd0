import numpy as np
import pytest
import torch

from hpcgnn.autograd import rows_at, take_rows


@pytest.mark.parametrize("shape", [(0,), (7,), (5, 3), (4, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_and_their_adjoint(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    random = np.random.default_rng(4)
    places = random.integers(6, size=shape).astype(np.int32)
    x = torch.randn(6, 5, dtype=dtype).T.contiguous().T.requires_grad_()
    found = take_rows(x, places)
    expected = x[torch.from_numpy(places).long()]
    assert torch.equal(found, expected)
    weights = torch.randn(found.shape, dtype=dtype)
    (of_found,) = torch.autograd.grad((found * weights).sum(), x)
    (of_expected,) = torch.autograd.grad((expected * weights).sum(), x)
    torch.testing.assert_close(of_found, of_expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_at_positions_and_their_adjoint(dtype: torch.dtype) -> None:
    x = torch.randn(7, 5).to(dtype).requires_grad_()
    positions, upper = torch.tensor([1, 2, 6, 4]), torch.randn(4, 5).to(dtype)
    found, expected = rows_at(x, positions), x.detach()[positions]
    assert torch.equal(found, expected)
    (gradient,) = torch.autograd.grad(found, x, upper)
    assert torch.equal(gradient[positions], upper)
    assert not gradient[[0, 3, 5]].any()


def test_rows_at_positions_of_other_tables() -> None:
    positions = torch.tensor([2, 0])
    for x in (torch.arange(3), torch.arange(12).view(3, 2, 2), torch.ones(3, 2).half()):
        assert torch.equal(rows_at(x, positions), x[positions])


def test_wrong_places_are_refused() -> None:
    with pytest.raises(ValueError, match="rows"):
        take_rows(torch.zeros(3, 2), np.array([0, 3], np.int32))
    with pytest.raises(TypeError, match="int32"):
        take_rows(torch.zeros(3, 2), np.array([0, 1]))
