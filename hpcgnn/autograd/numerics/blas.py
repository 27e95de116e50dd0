"""Choose the library and precision of torch's dense products on the CPU.

float32 products use torch's BLAS, or oneDNN:

torch uses oneDNN for float32 only if rounding to bfloat16 is allowed. Processors with matrix units
then round. On others oneDNN has no such products and multiplies in float32, with AVX-512 on AMD
processors up to 2.2 times as fast as MKL, the BLAS that torch ships with. Which of the two happens
is found by trying, and oneDNN is never used if it rounds.

oneDNN and its layer in torch cache the kernels they compile for each shape, by default 1,024
entries each. Sampled subgraphs and batches of graphs have new shapes in every step: at 0.5 MiB each
that is hundreds of MiB in a few hundred epochs. Both caches are bounded here.

bfloat16 is multiplied directly only if that is faster than float32.

The kernels of this package are faster than both libraries where results are narrow, and on
processors of Intel with AVX-512 for most shapes: 1.1 to 1.28 times for 256 to 1,024 columns on
Emerald Rapids.

What is found by trying or timing may differ between processes, so the ranks of a run agree on it.
"""

import os
import time
from collections.abc import Callable
from operator import matmul
from typing import Any

import torch
from torch import Tensor

from hpcgnn import kernels
from hpcgnn.comm import ProcessGrid, sum_over_ranks
from hpcgnn.spmd import collective

_MAGNITUDE = 1 << 12
"""Numbers below have 12 bits: more than bfloat16 (8) and tf32 (11) hold."""
_SHAPES = ((4096, 256, 256), (4096, 100, 16), (256, 2048, 100), (40, 300, 3000), (7, 64, 64))
"""Rows, summed dimension and columns of the products to try: oneDNN chooses kernels by shape."""
_TIMED_SHAPE, _TIMED = (1024, 256, 256), 5
"""The product to time, and the number of runs: with bfloat16 instructions of AMD it takes 0.4 times
as long as float32, with those of Intel but without AMX 1.8 times, without any at least 2.4."""
_KEPT_SHAPES = "48"
"""A model on a whole graph has three products per layer and node type, in two shapes. Programs,
which have the most per step, compile no more kernels than with 64, but twice as many with 32."""
_CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


_found: dict[Callable[[], bool], bool] = {}
"""What this process found by trying, or what its ranks agreed on."""


def multiply_by_fastest() -> str:
    """Use oneDNN for torch's float32 products if it does not round; return the library.

    The library is ``"oneDNN"``, or ``"torch"`` for torch's default; it is tried once per process.
    This also bounds oneDNN's caches, unless the environment sets that or oneDNN was used before.
    """
    return "oneDNN" if _answer(_takes_onednn) else "torch"


def bfloat16_is_fast() -> bool:
    """Return whether bfloat16 products are faster than float32 ones; measured once."""
    multiply_by_fastest()
    return _answer(_times_bfloat16)


def kernels_are_fast() -> bool:
    """Return whether this package's kernels multiply wide rows faster than libraries."""
    return _answer(_is_intel)


@collective
def multiply_alike(grid: ProcessGrid) -> None:
    """Let all ranks use the same library and precision.

    oneDNN, products of bfloat16 or this package's kernels are used if every rank finds that it can,
    or that they are faster.
    """
    multiply_by_fastest()
    questions = (_takes_onednn, _times_bfloat16, _is_intel)
    yes = sum_over_ranks(grid.world, [_answer(question) for question in questions])
    for question, ranks in zip(questions, yes, strict=True):
        _found[question] = ranks == grid.size
    if not _found[_takes_onednn] and (settings := _settings()):
        settings.fp32_precision = "ieee"


def _answer(question: Callable[[], bool]) -> bool:
    if question not in _found:
        _found[question] = question()
    return _found[question]


def _settings() -> Any:
    """Return torch's settings of oneDNN's products; None if this torch or its build lacks them."""
    library: Any = torch.backends.mkldnn
    settings: Any = getattr(library, "matmul", None)
    return settings if hasattr(settings, "fp32_precision") and library.is_available() else None


def _takes_onednn() -> bool:
    for name in _CAPACITIES:
        # oneDNN reads these when it computes its first product.
        os.environ.setdefault(name, _KEPT_SHAPES)
    if (settings := _settings()) is None:
        return False
    previous, stays = settings.fp32_precision, False
    settings.fp32_precision = "bf16"
    try:
        stays = _stays_float32()
    finally:
        if not stays:
            settings.fp32_precision = previous
    return stays


def _times_bfloat16() -> bool:
    times = []
    for dtype in (torch.bfloat16, torch.float32):
        rows, inner, columns = _TIMED_SHAPE
        left, right = torch.ones(rows, inner, dtype=dtype), torch.ones(inner, columns, dtype=dtype)
        # The first run also compiles the product: make one more.
        times.append(min(_seconds(left, right) for _ in range(1 + _TIMED)))
    return times[0] < times[1]


def _is_intel() -> bool:
    return kernels.is_intel() and "avx512" in kernels.available_isas()


def _seconds(left: Tensor, right: Tensor) -> float:
    # CPU time of this thread, so that other work of the machine does not count.
    began = time.thread_time()
    torch.mm(left, right)
    return time.thread_time() - began


def _stays_float32(product: Callable[[Tensor, Tensor], Tensor] = matmul) -> bool:
    """Return whether products are exact if float32 represents operands and sums exactly."""
    draw = torch.Generator().manual_seed(1)
    for rows, inner, columns in _SHAPES:
        # Sums stay below 2^12 * 2048 = 2^23, so float32 holds them exactly.
        left = torch.randint(_MAGNITUDE, (rows, inner), generator=draw).float()
        right = torch.randint(-1, 2, (inner, columns), generator=draw).float()
        exact = left.double() @ right.double()
        transposed = right.T.contiguous()
        for result in (
            product(left, right),
            product(right.T, left.T).T,
            product(left, transposed.T),
            product(transposed, left.T).T,
        ):
            if not torch.equal(result.double(), exact):
                return False
    return True
