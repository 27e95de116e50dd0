"""Results of a model's last map that only a loss reads, and that are never whole in memory.

With many classes, logits and their gradient are the largest arrays of a narrow model. A loss of
rows computes them in chunks that stay in cache, see `hpcgnn.autograd.losses.row_loss`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from hpcgnn import kernels
from hpcgnn.autograd.memory import memory_of


class MappedRows(Tensor):
    """``X Wᵀ + b`` (rows, out) as a loss takes it: X (rows, in), W (out, in), and b (out,) or None.

    It has a shape, a device and a dtype, that of W, but no numbers: other functions of torch raise
    `TypeError`.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    factors: tuple[Tensor, Tensor, Tensor | None]

    @classmethod
    def of(cls, rows: Tensor, weight: Tensor, bias: Tensor | None) -> "MappedRows":
        """Return the result of a map."""
        shape = len(rows), len(weight)
        mapped = Tensor._make_wrapper_subclass(cls, shape, dtype=weight.dtype, device=rows.device)
        mapped.factors = rows, weight, bias
        return mapped

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Raise a `TypeError`."""
        raise TypeError(f"{func} of the result of a last map, which only a loss reads")


_late: ContextVar[bool] = ContextVar("late", default=False)


@contextmanager
def late_maps(late: bool) -> Iterator[None]:
    """Let last maps inside the block return `MappedRows` where they can, or never.

    Who lets them gives the results to a loss of rows and to nothing else.
    """
    token = _late.set(late)
    try:
        yield
    finally:
        _late.reset(token)


def is_mapped_late(rows: Tensor) -> bool:
    """Return whether the result of a last map of `rows` is left to the loss."""
    if not _late.get() or type(rows) is not Tensor or not torch.is_grad_enabled():
        return False
    return memory_of(rows).kernels is kernels
