"""Save less for the backward pass: recompute, save a tensor for two functions, or overwrite it."""

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


_pack: ContextVar[_Pack] = ContextVar("pack", default=lambda saved: saved)


@contextmanager
def rematerialised(
    *means: tuple[Tensor, Callable[..., Tensor] | None, *tuple[Tensor, ...]],
) -> Iterator[None]:
    """Save the means to recompute some tensors when the enclosed forward pass saves them.

    Each of `means` is a tensor, a function that cheaply returns the same values, and the arguments
    of this function, which are saved for it. With None, the tensor itself is saved. Nested blocks
    pass tensors that they have no means for, including such arguments, to the outer block.
    """
    outside = _pack.get()
    # Compare shapes too: empty tensors all have the same address.
    makers = {
        _layout(x): (make, [outside(tensor.detach()) for tensor in arguments])
        for x, make, *arguments in means
        if make is not None
    }
    # The hook lives as long as the graph, and must not keep the tensors alive.
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


def _made(make: Callable[..., Tensor], arguments: list[_Kept]) -> Tensor:
    return make(*map(_unpacked, arguments))


def _layout(x: Tensor) -> tuple[Any, ...]:
    return x.data_ptr(), x.shape, x.stride(), x.dtype


@torch.no_grad()
def _unpacked(kept: _Kept) -> Tensor:
    return kept if isinstance(kept, Tensor) else kept()


# Functions that torch may rename: without them nothing is overwritten.
_keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
_count_uses = getattr(torch._C, "_storage_Use_Count", None)


def is_last_use(saved: Tensor) -> bool:
    """Return whether a backward pass may overwrite a tensor that its function saved.

    It may if nothing else holds the tensor's memory, and the graph is not kept for another pass.
    """
    if _keeps_graph is None or _count_uses is None or _keeps_graph():
        return False
    saved_uses, fresh_uses = (
        _count_uses(each.untyped_storage()._cdata) for each in (saved, torch.empty(0))
    )
    # The function itself holds the tensor once more than a variable does.
    return bool(saved_uses == fresh_uses + 1)


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return functional.relu(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        # One pass, unlike a product with a mask, which would turn infinite gradients into NaN.
        return torch.ops.aten.threshold_backward(gradients[0], x, 0)


def relu(x: Tensor) -> Tensor:
    """Return the positive parts; `x`, not the result, is saved for the backward pass."""
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
    """Return the positive parts in the memory of `x`, which no other function may have saved.

    The backward passes of this function and of the next one share the saved array.
    """
    return _Rectified.apply(x)  # type: ignore[no-untyped-call]
