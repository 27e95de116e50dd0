"""Mixed precision: products of rows in bfloat16 with weights in float32.

Rows are stored, gathered and sent in bfloat16. Products use rows and weights rounded to bfloat16,
and are summed in float32; weights, their gradients and the optimiser's state are float32.

Processors without bfloat16 instructions multiply it several times slower than float32. On them,
rows are widened in chunks that stay in cache, and multiplied in float32.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hpcgnn import kernels
from hpcgnn.autograd.epilogue import apply_epilogue
from hpcgnn.autograd.memory import in_order, memory_of
from hpcgnn.autograd.numerics.blas import bfloat16_is_fast, kernels_are_fast
from hpcgnn.autograd.sparse_features import SparseFeatures

PRECISIONS = ("float32", "bfloat16")
"""The dtypes of rows that can be combined with float32 weights."""

_CHUNK_ROWS, _CHUNK_BYTES = 1 << 14, 1 << 22
"""The larger of rows and bytes of a chunk: few enough to stay in cache, enough for an efficient
dense product."""
_CACHED_ROWS = 1 << 12
"""Rows of a chunk that is read without being widened."""
_NARROW = 128
"""Columns of results up to which the kernels of this package are mostly faster than BLAS."""
_LEAST_TERMS, _MOST_SUMMED, _MOST_SUMMED_16 = 64, 256, 512
"""Where these kernels are fast at any width: terms of a float32 product from which they are faster
than BLAS, and columns up to which they are in sums over rows of float32 and of 16 bits."""
_MOST_MAPPED = 1 << 16
"""Numbers of a weight up to which a map and its loss are one kernel: each of at least 16 threads
has a sum of its own for the gradient."""
_MIXED = {torch.float32, torch.bfloat16}
"""Dtypes that libraries do not multiply together, so that the result takes a pass more."""
_WIDENED = 1 << 19
"""Numbers of a chunk and its product together if both are widened to float32: 2 MiB."""


def row_chunks(rows: Tensor) -> list[slice]:
    """Return slices that cut rows into chunks, for work that widens one chunk at a time.

    Rows that are not widened are one chunk.
    """
    step = max(len(rows), 1)
    if rows.dtype == torch.bfloat16:
        step = max(_CHUNK_ROWS, _CHUNK_BYTES // max(1, rows.element_size() * rows.shape[-1]))
    return [slice(start, start + step) for start in range(0, len(rows), step)]


def cache_chunks(rows: Tensor) -> list[slice]:
    """Return slices of chunks of rows that stay in cache; one chunk of all rows on a GPU."""
    step = _CACHED_ROWS if rows.is_cpu else max(len(rows), 1)
    return [slice(start, start + step) for start in range(0, len(rows), step)]


def like_rows(weight: Tensor, rows: Tensor) -> Tensor:
    """Return a weight in the dtype of the rows it is multiplied with, without history."""
    weight = weight.detach()
    return weight if weight.dtype is rows.dtype else weight.to(rows.dtype)


def widened(rows: Tensor) -> Tensor:
    """Return bfloat16 rows in float32, and other rows unchanged; differentiable."""
    if rows.dtype != torch.bfloat16:
        return rows
    if isinstance(rows, SparseFeatures):
        return rows.float()
    wide: Tensor = _Widened.apply(rows)  # type: ignore[no-untyped-call]
    return wide


class _Widened(torch.autograd.Function):
    """torch's conversion to float32, but in reused memory."""

    @staticmethod
    def forward(_ctx: Any, rows: Tensor) -> Tensor:
        return _converted(rows, torch.float32)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return _converted(gradients[0], torch.bfloat16)


def _converted(rows: Tensor, dtype: torch.dtype) -> Tensor:
    return empty_rows(rows, rows.shape, dtype).copy_(rows)


def empty_rows(like: Tensor, shape: Sequence[int], dtype: torch.dtype | None) -> Tensor:
    """Return memory where a tensor is, of another dtype unless that is None."""
    if dtype is not None and dtype != like.dtype:
        like = torch.empty(0, dtype=dtype, device=like.device)
    return memory_of(like).empty(like, shape)


def narrowed(
    gradient: Tensor, dtype: torch.dtype, factors: Sequence[Tensor] | None = None
) -> Tensor:
    """Return the gradient of a result, which may be wider than its rows, in their dtype.

    It stays as it is if it only has products with `factors` (columns, any), which then are faster.
    """
    if gradient.dtype == dtype:
        return gradient
    most = _MOST_SUMMED_16 if kernels_are_fast() else _NARROW
    is_narrow = factors is not None and all(factor.shape[1] <= most for factor in factors)
    stays = is_narrow and _multiplies(gradient, dtype)
    return gradient if stays else _converted(gradient, dtype)


def blend(x: Tensor, y: Tensor, share: float) -> Tensor:
    """Return ``(1 - share) x + share y``, differentiable; bfloat16 is only rounded once."""
    if x.dtype == torch.bfloat16:
        return torch.lerp(x, y, share)
    return (1 - share) * x + share * y


def as_multiplied(rows: Tensor) -> Tensor:
    """Return a few rows in the dtype in which their products are fastest."""
    return rows.float() if _widens(rows) else rows


def multiply(rows: Tensor, matrix: Tensor, out: Tensor, bias: Tensor | None = None) -> Tensor:
    """Write ``rows matrix`` to `out`, and return it; all may have the same leading dimensions.

    With a `bias` (columns,), in the dtype of weights, that is added. `out` may be float32 beside
    rows of 16 bits.
    """
    if _takes_kernel(rows, out):
        arrays = _arrays(rows, _weights(matrix), out)
        shift = None if bias is None else memory_of(rows).array(bias.contiguous())
        kernels.dense_product(*arrays, bias=shift, half="bfloat16")
        return out
    if isinstance(rows, SparseFeatures):
        rows.write_product(matrix, out)
    elif _widens(rows):
        wide = matrix.float()
        for chunk in _widened_chunks(rows, out):
            out[chunk].copy_(multiply(rows[chunk].float(), wide, wide.new_empty(out[chunk].shape)))
    elif rows.dtype != out.dtype:
        out.copy_(multiply(rows, matrix, memory_of(rows).empty(rows, out.shape)))
    else:
        torch.matmul(rows, matrix, out=out)
    apply_epilogue(out, bias, None)
    return out


def add_multiplied(total: Tensor, rows: Tensor, matrix: Tensor) -> None:
    """Add ``rows matrix`` to `total`."""
    if isinstance(rows, SparseFeatures):
        rows.write_product(matrix, total, accumulate=True)
        return
    if _takes_kernel(rows, total):
        arrays = _arrays(rows, _weights(matrix), total)
        kernels.dense_product(*arrays, accumulate=True, half="bfloat16")
        return
    if rows.dtype != total.dtype:
        total += multiply(rows, matrix, memory_of(rows).empty(rows, total.shape))
        return
    if not _widens(rows):
        total.addmm_(rows, matrix)
        return
    wide = matrix.float()
    for chunk in _widened_chunks(rows, total):
        sums = total[chunk].float()
        add_multiplied(sums, rows[chunk].float(), wide)
        total[chunk].copy_(sums)


def weight_gradient(gradient: Tensor, rows: Tensor) -> Tensor:
    """Return ``gradientᵀ rows`` in the dtype of weights; one of them may be sparse.

    Products of bfloat16 have bfloat16 results: the rows are cut into chunks, whose rounded products
    are summed in float32.
    """
    if isinstance(gradient, SparseFeatures):
        return gradient.contract(rows)
    if isinstance(rows, SparseFeatures):
        return in_order(rows.contract(gradient).t())
    turned = gradient.shape[1] < rows.shape[1]
    wide, narrow = (rows, gradient) if turned else (gradient, rows)
    if _takes_kernel(wide, narrow, is_summed=True):
        total = gradient.new_zeros((wide.shape[1], narrow.shape[1]), dtype=torch.float32)
        kernels.dense_contraction(*_arrays(wide, narrow, total), half="bfloat16")
        return in_order(total.t()) if turned else total
    gradient = narrowed(gradient, rows.dtype)
    if rows.dtype != torch.bfloat16:
        if gradient.shape[1] > rows.shape[1]:
            # With the narrower matrix on the left, libraries are up to a third faster.
            return in_order((rows.t() @ gradient).t())
        return gradient.t() @ rows
    total = gradient.new_zeros((gradient.shape[1], rows.shape[1]), dtype=torch.float32)
    if _widens(rows):
        for chunk in _widened_chunks(rows, gradient):
            total += weight_gradient(gradient[chunk].float(), rows[chunk].float())
        return total
    for chunk in row_chunks(rows):
        total += gradient[chunk].t() @ rows[chunk]
    return total


def maps_by_kernel(rows: Tensor, weight: Tensor) -> bool:
    """Return whether kernels of this package are the fastest for a map and its gradients.

    The weight is ``(columns, terms)``.
    """
    return (
        type(rows) is Tensor
        and rows.is_contiguous()
        and _multiplies(rows, weight.dtype)
        and weight.numel() <= _MOST_MAPPED
        and (kernels_are_fast() or max(weight.shape) <= _NARROW)
    )


def _takes_kernel(rows: Tensor, other: Tensor, *, is_summed: bool = False) -> bool:
    """Return whether kernels of this package multiply rows; `other` is the result.

    In a sum over rows it is the operand with fewer columns.
    """
    return (
        # Functions of torch compute the rows of other classes.
        type(rows) is type(other) is Tensor
        and rows.is_cpu
        and rows.ndim == 2
        and rows.is_contiguous()
        and other.is_contiguous()
        and _multiplies(rows, other.dtype)
        and (other.shape[1] <= _NARROW or _takes_wide(rows, other, is_summed=is_summed))
    )


def _takes_wide(rows: Tensor, other: Tensor, *, is_summed: bool) -> bool:
    if not kernels_are_fast():
        return False
    is_wide = rows.dtype == other.dtype == torch.float32
    if is_summed:
        return other.shape[1] <= (_MOST_SUMMED if is_wide else _MOST_SUMMED_16)
    return not is_wide or rows.shape[1] >= _LEAST_TERMS


def _multiplies(rows: Tensor, dtype: torch.dtype) -> bool:
    """Return whether these kernels are the fastest for rows beside a result of a dtype."""
    if rows.dtype == dtype:
        return dtype == torch.float32 or _widens(rows)
    return {rows.dtype, dtype} == _MIXED and rows.is_cpu and not bfloat16_is_fast()


def _weights(matrix: Tensor) -> Tensor:
    return matrix.float() if matrix.dtype == torch.bfloat16 else matrix


def _arrays(*tensors: Tensor) -> list[Any]:
    return [memory_of(tensor).array(tensor) for tensor in tensors]


def _widens(rows: Tensor) -> bool:
    return rows.dtype == torch.bfloat16 and rows.device.type == "cpu" and not bfloat16_is_fast()


def _widened_chunks(rows: Tensor, results: Tensor) -> Iterator[Any]:
    """Yield indices of the chunks of both tables, whose rows may have leading dimensions."""
    numbers = sum(table.shape[:-2].numel() * table.shape[-1] for table in (rows, results))
    step = max(1, _WIDENED // max(numbers, 1))
    for start in range(0, rows.shape[-2], step):
        yield ..., slice(start, start + step), slice(None)
