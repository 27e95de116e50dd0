"""Rows in 16 bits beside weights in float32: what a layer needs to compute with both.

Rows of bfloat16 are stored, gathered and sent as they are. Products of rows and weights, both
rounded to it, add up in float32; weights, their gradients and what the optimiser keeps are float32.

Processors without instructions for bfloat16 multiply it several times slower than float32. There
rows are widened a chunk at a time, in cache, and multiplied in float32.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.blas import bfloat16_is_fast
from hpcgnn.autograd.sparse_features import SparseFeatures

PRECISIONS = ("float32", "bfloat16")
"""Names of the formats of rows beside float32 weights."""

_CHUNK_ROWS = 1 << 14
"""Rows of a chunk: few enough to stay in cache, enough for a dense product."""
_CACHED_ROWS = 1 << 12
"""The same where rows are read as they are."""
_WIDENED = 1 << 19
"""Numbers of a chunk and its product together, where both are there in float32 too: 2 MiB."""


def row_chunks(rows: Tensor) -> list[slice]:
    """Return where the chunks of some rows are, for work that needs room for a chunk in float32.

    Rows that need no such room are one chunk.
    """
    step = _CHUNK_ROWS if rows.dtype == torch.bfloat16 else max(len(rows), 1)
    return [slice(start, start + step) for start in range(0, len(rows), step)]


def cache_chunks(rows: Tensor) -> list[slice]:
    """Return where chunks of some rows are that stay in cache; all at once on a GPU."""
    step = _CACHED_ROWS if rows.is_cpu else max(len(rows), 1)
    return [slice(start, start + step) for start in range(0, len(rows), step)]


def like_rows(weight: Tensor, rows: Tensor) -> Tensor:
    """Return a weight as products with rows take it: of their dtype, without history."""
    return weight.detach().to(rows.dtype)


def widened(rows: Tensor) -> Tensor:
    """Return rows of bfloat16 in float32, others as they are; differentiable."""
    if rows.dtype != torch.bfloat16:
        return rows
    if isinstance(rows, SparseFeatures):
        return rows.float()
    wide: Tensor = _Widened.apply(rows)  # type: ignore[no-untyped-call]
    return wide


class _Widened(torch.autograd.Function):
    """The same as torch's, in memory of results that are gone."""

    @staticmethod
    def forward(_ctx: Any, rows: Tensor) -> Tensor:
        return _converted(rows, torch.float32)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return _converted(gradients[0], torch.bfloat16)


def _converted(rows: Tensor, dtype: torch.dtype) -> Tensor:
    like = torch.empty(0, dtype=dtype, device=rows.device)
    return memory_of(like).empty(like, rows.shape).copy_(rows)


def blend(x: Tensor, y: Tensor, share: float) -> Tensor:
    """Return ``(1 - share) x + share y``, differentiable; bfloat16 is rounded once."""
    if x.dtype == torch.bfloat16:
        return torch.lerp(x, y, share)
    return (1 - share) * x + share * y


def as_multiplied(rows: Tensor) -> Tensor:
    """Return a few rows in the dtype in which their products take the least time."""
    return rows.float() if _widens(rows) else rows


def multiply(rows: Tensor, matrix: Tensor, out: Tensor) -> Tensor:
    """Write ``rows matrix`` to `out`, and return it; all may have heads in front, alike."""
    if isinstance(rows, SparseFeatures):
        return rows.write_product(matrix, out)
    if not _widens(rows):
        return torch.matmul(rows, matrix, out=out)
    wide = matrix.float()
    for chunk in _widened_chunks(rows, out):
        out[chunk].copy_(rows[chunk].float() @ wide)
    return out


def add_multiplied(total: Tensor, rows: Tensor, matrix: Tensor) -> None:
    """Add ``rows matrix`` to `total`."""
    if isinstance(rows, SparseFeatures):
        rows.write_product(matrix, total, accumulate=True)
        return
    if not _widens(rows):
        total.addmm_(rows, matrix)
        return
    wide = matrix.float()
    for chunk in _widened_chunks(rows, total):
        total[chunk].copy_(torch.addmm(total[chunk].float(), rows[chunk].float(), wide))


def weight_gradient(gradient: Tensor, rows: Tensor) -> Tensor:
    """Return ``gradientᵀ rows`` in the dtype of weights.

    Products of bfloat16 give bfloat16: the rows are cut, so that what is rounded adds up in
    float32.
    """
    if isinstance(rows, SparseFeatures):
        return rows.contract(gradient)
    if rows.dtype != torch.bfloat16:
        if gradient.shape[1] > rows.shape[1]:
            # Libraries take up to a third less time with the narrower matrix on the left.
            return (rows.t() @ gradient).t().contiguous()
        return gradient.t() @ rows
    total = gradient.new_zeros((gradient.shape[1], rows.shape[1]), dtype=torch.float32)
    if _widens(rows):
        for chunk in _widened_chunks(rows, gradient):
            total.addmm_(gradient[chunk].float().t(), rows[chunk].float())
        return total
    for chunk in row_chunks(rows):
        total += gradient[chunk].t() @ rows[chunk]
    return total


def _widens(rows: Tensor) -> bool:
    return rows.dtype == torch.bfloat16 and rows.device.type == "cpu" and not bfloat16_is_fast()


def _widened_chunks(rows: Tensor, others: Tensor) -> Iterator[Any]:
    """Yield where the chunks of both are, behind what may stand in front of rows."""
    numbers = sum(each.shape[:-2].numel() * each.shape[-1] for each in (rows, others))
    step = max(1, _WIDENED // max(numbers, 1))
    for start in range(0, rows.shape[-2], step):
        yield ..., slice(start, start + step), slice(None)
