import numpy as np
import pytest
import torch

from hpcgnn.autograd import take_rows


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


def test_wrong_places_are_refused() -> None:
    with pytest.raises(ValueError, match="rows"):
        take_rows(torch.zeros(3, 2), np.array([0, 3], np.int32))
    with pytest.raises(TypeError, match="int32"):
        take_rows(torch.zeros(3, 2), np.array([0, 1]))
