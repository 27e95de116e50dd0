"""Results of a model's last map that a loss computes, chunk by chunk, and that are never whole.

With many classes, logits and their gradient are the largest arrays of a narrow model; see
`hpcgnn.autograd.losses.row_loss`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from typing_extensions import override

from hpcgnn import kernels
from hpcgnn.autograd.memory import memory_of

Factors: TypeAlias = tuple[Tensor, Tensor, Tensor | None]

_OF_SHAPE = (
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim")),
    *(getattr(Tensor, name).__get__ for name in ("is_cpu", "is_cuda")),
    *(Tensor.dim, Tensor.size, Tensor.__len__),
)
"""Functions of a tensor that need no numbers."""


class MappedRows(Tensor):
    """``X Wᵀ + b`` (rows, out) of the factors X (rows, in), W (out, in), and b (out,) or None.

    A loss of rows computes it by chunks. Any other function of torch computes all of it, and raises
    `TypeError` without gradients: inside of an autograd function, those of the map would be lost.
    """

    factors: Factors
    _map: Callable[..., Tensor]

    @classmethod
    def of(cls, factors: Factors, linear: Callable[..., Tensor]) -> "MappedRows":
        """Return the result of a map; `linear` computes all of it, differentiable."""
        rows, weight, _ = factors
        shape = len(rows), len(weight)
        mapped = Tensor._make_wrapper_subclass(cls, shape, dtype=weight.dtype, device=rows.device)
        mapped.factors, mapped._map = factors, linear
        return mapped

    def chosen(self, choose: Callable[[Tensor], Tensor]) -> "MappedRows":
        """Return the rows that `choose` takes of any rows."""
        rows, weight, bias = self.factors
        return MappedRows.of((choose(rows), weight, bias), self._map)

    @cached_property
    def _whole(self) -> Tensor:
        return self._map(*self.factors)

    @classmethod
    @override
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _OF_SHAPE:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if not torch.is_grad_enabled():
            raise TypeError(f"{func.__name__} of the result of a last map, without gradients")
        args, kwargs = tree_map_only(cls, lambda mapped: mapped._whole, (args, kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Raise `TypeError`: there are no numbers."""
        raise TypeError(f"{func} of the result of a last map")


_late: ContextVar[bool] = ContextVar("late", default=False)


@contextmanager
def late_maps() -> Iterator[None]:
    """Let the last maps of models inside the block return `MappedRows`, where they can."""
    token = _late.set(True)
    try:
        yield
    finally:
        _late.reset(token)


def is_mapped_late(rows: Tensor) -> bool:
    """Return whether the result of a last map of `rows` is left to the loss."""
    if not _late.get() or type(rows) is not Tensor or not torch.is_grad_enabled():
        return False
    return memory_of(rows).kernels is kernels
