"""Who multiplies dense matrices of the host for torch, and in what precision.

float32 goes to torch's BLAS, or to oneDNN:

torch gives float32 to oneDNN only where rounding to bfloat16 is allowed. Processors with matrix
units then round. On others oneDNN has no such products: it multiplies in float32, on AVX-512 of
AMD's processors up to 2.2 times as fast as MKL, the BLAS that torch comes with. Which of the two
happens is tried, and rounding is never kept.

oneDNN and the layer between it and torch keep what they compiled for each shape, 1,024 entries each
by default. Sampled subgraphs and batches of graphs have other shapes in every step: at 0.5 MiB each
that is hundreds of MiB in a few hundred epochs. Both are bounded here.

bfloat16 is multiplied as it is only where that is faster than float32.
"""

import functools
import os
import time
from collections.abc import Callable
from operator import matmul
from typing import Any

import torch
from torch import Tensor

_MAGNITUDE = 1 << 12
"""Numbers below have 12 bits: more than bfloat16 (8) and tf32 (11) hold."""
_SHAPES = ((4096, 256, 256), (4096, 100, 16), (256, 2048, 100), (40, 300, 3000), (7, 64, 64))
"""Rows, summed dimension and columns of the products that are tried: oneDNN chooses by shape."""
_TIMED_SHAPE, _TIMED = (1024, 256, 256), 5
"""The product that is timed, and how often: with instructions for bfloat16 it takes 0.4 of
float32's time, without them 2.4 times that and more."""
_KEPT_SHAPES = "48"
"""A model on a whole graph has three products a layer and type of nodes, in two shapes. Programs,
which have the most in a step, compile as few as with 64; with 32 more than twice as many."""
_CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


@functools.cache
def multiply_by_fastest() -> str:
    """Let torch multiply float32 by oneDNN where that stays float32; return who multiplies now.

    It is a setting of the process, tried once. ``"oneDNN"``, or ``"torch"``: as it does by itself.
    It also bounds what oneDNN keeps, unless the environment sets that or oneDNN has been used.
    """
    for name in _CAPACITIES:
        # Read when the first product is computed.
        os.environ.setdefault(name, _KEPT_SHAPES)
    library: Any = torch.backends.mkldnn
    settings: Any = getattr(library, "matmul", None)
    # Versions of torch without this setting, and builds without oneDNN.
    if not hasattr(settings, "fp32_precision") or not library.is_available():
        return "torch"
    before, stays = settings.fp32_precision, False
    settings.fp32_precision = "bf16"
    try:
        stays = _stays_float32()
    finally:
        if not stays:
            settings.fp32_precision = before
    return "oneDNN" if stays else "torch"


@functools.cache
def bfloat16_is_fast() -> bool:
    """Tell whether products of bfloat16 take less time than those of float32; tried once."""
    multiply_by_fastest()
    times = []
    for dtype in (torch.bfloat16, torch.float32):
        rows, inner, columns = _TIMED_SHAPE
        left, right = torch.ones(rows, inner, dtype=dtype), torch.ones(inner, columns, dtype=dtype)
        # The first product is compiled.
        times.append(min(_seconds(left, right) for _ in range(1 + _TIMED)))
    return times[0] < times[1]


def _seconds(left: Tensor, right: Tensor) -> float:
    # Of this thread: others of the machine do not count.
    began = time.thread_time()
    torch.mm(left, right)
    return time.thread_time() - began


def _stays_float32(product: Callable[[Tensor, Tensor], Tensor] = matmul) -> bool:
    """Tell whether products are exact whose operands and sums float32 holds exactly."""
    draw = torch.Generator().manual_seed(1)
    for rows, inner, columns in _SHAPES:
        # Sums stay below 2^12 2048 = 2^23.
        left = torch.randint(_MAGNITUDE, (rows, inner), generator=draw).float()
        right = torch.randint(-1, 2, (inner, columns), generator=draw).float()
        exact = left.double() @ right.double()
        turned = right.T.contiguous()
        for found in (
            product(left, right),
            product(right.T, left.T).T,
            product(left, turned.T),
            product(turned, left.T).T,
        ):
            if not torch.equal(found.double(), exact):
                return False
    return True
