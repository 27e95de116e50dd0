"""The choice of the BLAS library: float32 stays float32, whatever torch allows."""

import os
import subprocess
import sys
from unittest.mock import Mock

from mpi4py import MPI

import pytest
import torch
from torch import Tensor

from hpcgnn import kernels
from hpcgnn.autograd.numerics import blas, mixed
from hpcgnn.comm import ProcessGrid


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
    # Only shapes of one kind use matrix units.
    assert not blas._stays_float32(lambda a, b: a @ b if len(a) > 40 else rounded(a) @ rounded(b))


def test_a_library_that_rounds_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    monkeypatch.setattr(blas, "_stays_float32", lambda: False)
    try:
        settings.fp32_precision = "ieee"
        assert not blas._takes_onednn()
        assert settings.fp32_precision == "ieee"
    finally:
        settings.fp32_precision = before


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("question", ["_takes_onednn", "_times_bfloat16", "_is_intel"])
def test_ranks_that_find_different_products_faster_multiply_alike(
    question: str, comm: MPI.Comm, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    for name in ("_takes_onednn", "_times_bfloat16", "_is_intel"):
        is_no = name == question and comm.rank == comm.size - 1
        monkeypatch.setattr(blas, name, lambda no=is_no: not no)
    monkeypatch.setattr(blas, "_found", {})
    try:
        settings.fp32_precision = "bf16"
        with ProcessGrid(comm) as grid:
            blas.multiply_alike(grid)
        assert blas.multiply_by_fastest() == ("torch" if question == "_takes_onednn" else "oneDNN")
        assert blas.bfloat16_is_fast() == (question != "_times_bfloat16")
        assert blas.kernels_are_fast() == (question != "_is_intel")
        # Only "bf16" lets torch multiply float32 by oneDNN.
        assert settings.fp32_precision == ("ieee" if question == "_takes_onednn" else "bf16")
    finally:
        settings.fp32_precision = before


PRODUCTS = """
import re
import torch
from hpcgnn.autograd.numerics.blas import multiply_by_fastest

def resident_mib():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

torch.set_num_threads(1)
multiply_by_fastest()
draw = torch.Generator().manual_seed(0)
weight, found = torch.randn(64, 64, generator=draw).to_mkldnn(), []
for product in range(801):
    rows = int(torch.randint(500, 5000, (1,), generator=draw))
    torch.nn.functional.linear(torch.ones(rows, 64).to_mkldnn(), weight)
    if product in (150, 800):
        found.append(resident_mib())
print(found[1] - found[0])
"""


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
@pytest.mark.parametrize("bounded", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_shapes_that_onednn_keeps_are_bounded(bounded: bool) -> None:
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    # A setting of the environment is kept: the default, 1,024, shows that the test can tell.
    environment |= {} if bounded else dict.fromkeys(names, "1024")
    words = [sys.executable, "-c", PRODUCTS]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    grown_mib = float(done.stdout)
    assert grown_mib < 40 if bounded else grown_mib > 150


@pytest.mark.parametrize("fast", [True, False])
def test_rows_of_16_bits_are_multiplied_in_either_precision(
    fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixed, "bfloat16_is_fast", lambda: fast)
    draw = torch.Generator().manual_seed(3)
    # Two chunks and a remainder, for each of two heads.
    monkeypatch.setattr(mixed, "_WIDENED", 64 * 2 * (40 + 30))
    shape = (2 * 64 + 7, 40)
    rows = torch.randn(2, *shape, generator=draw).bfloat16()
    matrix = torch.randn(2, 40, 30, generator=draw).bfloat16()
    exact = rows.double() @ matrix.double()
    room = torch.empty(exact.shape, dtype=torch.bfloat16)
    assert mixed.multiply(rows, matrix, room) is room
    torch.testing.assert_close(room.double(), exact, rtol=2**-8, atol=1e-3)
    total = torch.ones(len(rows[0]), 30).bfloat16()
    mixed.add_multiplied(total, rows[0], matrix[0])
    torch.testing.assert_close(total.double(), 1 + exact[0], rtol=2**-8, atol=1e-2)
    gradient = mixed.weight_gradient(room[0], rows[0])
    assert gradient.dtype == torch.float32
    due = room[0].double().t() @ rows[0].double()
    # A chunk's sum keeps at least 7 bits.
    near = {"rtol": 2**-7, "atol": 2.0} if fast else {"rtol": 1e-5, "atol": 1e-3}
    torch.testing.assert_close(gradient.double(), due, **near)


def test_a_processor_without_16_bit_products_widens(monkeypatch: pytest.MonkeyPatch) -> None:
    took = {torch.bfloat16: 3.0, torch.float32: 1.0}
    monkeypatch.setattr(blas, "_seconds", lambda left, _: took[left.dtype])
    assert not blas._times_bfloat16()
    took[torch.bfloat16] = 0.4
    assert blas._times_bfloat16()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("widths", [(70, 200), (40, 200), (600, 600)])
def test_wide_products_of_kernels_and_libraries_agree(
    widths: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    (inner, width), is_wide = widths, dtype == torch.float32
    monkeypatch.setattr(mixed, "bfloat16_is_fast", lambda: False)
    product, contraction = Mock(wraps=kernels.dense_product), Mock(wraps=kernels.dense_contraction)
    monkeypatch.setattr(kernels, "dense_product", product)
    monkeypatch.setattr(kernels, "dense_contraction", contraction)
    draw = torch.Generator().manual_seed(4)
    rows = torch.randn(135, inner, generator=draw).to(dtype)
    matrix, bias = torch.randn(inner, width, generator=draw), torch.randn(width, generator=draw)
    gradient = torch.randn(135, width, generator=draw)
    exact = rows.double() @ matrix.double()
    near = {"rtol": 1e-4, "atol": 1e-3} if is_wide else {"rtol": 2**-6, "atol": 0.3}
    for fast in (True, False):
        monkeypatch.setattr(mixed, "kernels_are_fast", lambda fast=fast: fast)
        product.reset_mock()
        contraction.reset_mock()
        out = mixed.multiply(rows, matrix, torch.empty(exact.shape, dtype=dtype), bias)
        torch.testing.assert_close(out.double(), exact + bias, **near)
        mixed.add_multiplied(out, rows, matrix)
        torch.testing.assert_close(out.double(), 2 * exact + bias, **near)
        # Kernels are slower for few terms in float32, and for sums of very many columns.
        assert product.call_count == 2 * (fast and not (is_wide and inner < 64))
        total = mixed.weight_gradient(gradient, rows)
        due = gradient.double().t() @ rows.double()
        torch.testing.assert_close(total.double(), due, **near)
        is_narrow = inner <= 128 or (fast and not is_wide and inner <= 512)
        assert contraction.call_count == is_narrow
