"""Results of layers that are computed again for the backward pass, or wait once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from hpcgnn.autograd.memory import memory_of

_Kept: TypeAlias = Tensor | Callable[[], Tensor]


_Pack: TypeAlias = Callable[[Tensor], _Kept]


def _as_it_is(saved: Tensor) -> _Kept:
    return saved


_pack: ContextVar[_Pack] = ContextVar("pack", default=_as_it_is)


@contextmanager
def rematerialised(
    *means: tuple[Tensor, Callable[..., Tensor] | None, *tuple[Tensor, ...]],
) -> Iterator[None]:
    """Keep, wherever the enclosed forward pass saves some tensors, only the means to make them.

    Behind a tensor stands what returns the same values, cheaply, and the tensors that this is
    called with, which wait for it; with None the tensor is saved itself. A block inside another one
    leaves to it what it has no means for, those tensors included.
    """
    outside = _pack.get()
    # Tensors without rows are all at one place.
    makers = {
        _layout(x): (again, [outside(tensor.detach()) for tensor in of])
        for x, again, *of in means
        if again is not None
    }
    # The hook lives as long as the graph: it must not keep the tensors alive.
    del means
    if not makers or not torch.is_grad_enabled():
        yield
        return

    def pack(saved: Tensor) -> _Kept:
        maker = makers.get(_layout(saved))
        return outside(saved) if maker is None else partial(_made, *maker)

    token = _pack.set(pack)
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, _unpacked):
            yield
    finally:
        _pack.reset(token)


def _made(again: Callable[..., Tensor], of: list[_Kept]) -> Tensor:
    return again(*map(_unpacked, of))


def _layout(x: Tensor) -> tuple[Any, ...]:
    return x.data_ptr(), x.shape, x.stride(), x.dtype


@torch.no_grad()
def _unpacked(kept: _Kept) -> Tensor:
    return kept if isinstance(kept, Tensor) else kept()


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return functional.relu(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        # One pass; a product with a mask would also turn infinite gradients into NaN.
        return torch.ops.aten.threshold_backward(gradients[0], x, 0)


def relu(x: Tensor) -> Tensor:
    """Return the positive parts; `x` waits for the backward pass, and not the result."""
    return _Relu.apply(x)  # type: ignore[no-untyped-call]


class _Rectified(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x.relu_())
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (result,) = ctx.saved_tensors
        masked = memory_of(result).empty(result, result.shape)
        torch.ops.aten.threshold_backward.grad_input(gradients[0], result, 0, grad_input=masked)
        return masked


def relu_(x: Tensor) -> Tensor:
    """Return the positive parts in the memory of `x`, which nobody may have saved.

    The one array serves the backward pass of this function and that of the next.
    """
    return _Rectified.apply(x)  # type: ignore[no-untyped-call]
