"""Which library multiplies: float32 stays float32, whatever torch is allowed."""

import pytest
import torch
from torch import Tensor

from hpcgnn.autograd import blas


def test_products_of_this_process_are_float32() -> None:
    assert blas.multiply_by_fastest() in {"oneDNN", "torch"}
    draw = torch.Generator().manual_seed(3)
    left = torch.randn(1000, 200, generator=draw)
    right = torch.randn(200, 300, generator=draw)
    exact = left.double() @ right.double()
    error = (left @ right - exact).abs().max() / exact.abs().max()
    assert error < 1e-6


@pytest.mark.parametrize("bits", [8, 11])
def test_rounded_operands_are_noticed(bits: int) -> None:
    def rounded(x: Tensor) -> Tensor:
        fraction, exponent = torch.frexp(x)
        return torch.ldexp((fraction * 2**bits).round() / 2**bits, exponent)

    assert blas._stays_float32()
    assert not blas._stays_float32(lambda a, b: rounded(a) @ rounded(b))
    # Only one kind of shape goes to matrix units.
    assert not blas._stays_float32(lambda a, b: a @ b if len(a) > 40 else rounded(a) @ rounded(b))


def test_a_library_that_rounds_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    monkeypatch.setattr(blas, "_stays_float32", lambda: False)
    try:
        settings.fp32_precision = "ieee"
        assert blas.multiply_by_fastest.__wrapped__() == "torch"
        assert settings.fp32_precision == "ieee"
    finally:
        settings.fp32_precision = before
