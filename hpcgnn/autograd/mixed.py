"""Rows in 16 bits beside weights in float32: what a layer needs to compute with both.

Rows of bfloat16 are stored, gathered and sent as they are. Products of rows and weights run in
bfloat16 and add up in float32; weights, their gradients and what the optimiser keeps are float32.
"""

import torch
from torch import Tensor

PRECISIONS = ("float32", "bfloat16")
"""Names of the formats of rows beside float32 weights."""

_CHUNK_ROWS = 1 << 14
"""Rows of a chunk: few enough to stay in cache, enough for a dense product."""


def row_chunks(rows: Tensor) -> list[slice]:
    """Return where the chunks of some rows are, for work that needs room for a chunk in float32.

    Rows that need no such room are one chunk.
    """
    step = _CHUNK_ROWS if rows.dtype == torch.bfloat16 else max(len(rows), 1)
    return [slice(start, start + step) for start in range(0, len(rows), step)]


def like_rows(weight: Tensor, rows: Tensor) -> Tensor:
    """Return a weight as products with rows take it: of their dtype, without history."""
    return weight.detach().to(rows.dtype)


def widened(rows: Tensor) -> Tensor:
    """Return rows of bfloat16 in float32, others as they are; differentiable."""
    return rows.float() if rows.dtype == torch.bfloat16 else rows


def blend(x: Tensor, y: Tensor, share: float) -> Tensor:
    """Return ``(1 - share) x + share y``, differentiable; bfloat16 is rounded once."""
    if x.dtype == torch.bfloat16:
        return torch.lerp(x, y, share)
    return (1 - share) * x + share * y


def weight_gradient(gradient: Tensor, rows: Tensor) -> Tensor:
    """Return ``gradientᵀ rows`` in the dtype of weights.

    Products of bfloat16 give bfloat16: the rows are cut, so that what is rounded adds up in
    float32.
    """
    if rows.dtype != torch.bfloat16:
        return gradient.t() @ rows
    total = gradient.new_zeros((gradient.shape[1], rows.shape[1]), dtype=torch.float32)
    for chunk in row_chunks(rows):
        total += gradient[chunk].t() @ rows[chunk]
    return total
