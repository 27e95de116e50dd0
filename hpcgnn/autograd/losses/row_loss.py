"""Losses of rows whose forward pass also computes the gradient, since both share exponentials.

With the last map of a model, `MappedRows`, they are one function, as for language models: chunk by
chunk, logits are computed, replaced by their gradient, and mapped back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from hpcgnn import kernels
from hpcgnn.autograd.epilogue import epilogue_gradient
from hpcgnn.autograd.losses.mapped_rows import MappedRows
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.mixed import (
    like_rows,
    maps_by_kernel,
    multiply,
    narrowed,
    weight_gradient,
)
from hpcgnn.kernels.losses import Logits
from hpcgnn.typing import FloatArray

_CHUNK_BYTES = 3 << 19
"""Size of a chunk of rows and logits."""


class _Write(Protocol):
    def __call__(
        self, chunk: slice, logits: Logits, losses: FloatArray, gradient: Logits | None
    ) -> None: ...


@dataclass(frozen=True, eq=False)
class RowLoss:
    """A loss ``Σ_i f_i l_i / d`` of rows in main memory; its factors f are (rows,), None for ones.

    For a chunk of rows, `write` writes l to `losses` (n,) and the gradient of ``Σ_i f_i l_i / d``
    to `gradient`, None to skip it. This is like the logits (n, C), or a map of which they are the
    result, and may be in their memory. `add` sums losses up, see `Arithmetic.loss`.
    """

    write: _Write
    factors: Tensor | None
    divisor: float
    add: Callable[[Tensor], Tensor]

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the loss of logits (rows, C), or of a `MappedRows`, differentiable."""
        if isinstance(logits, MappedRows):
            return _OfMap.apply(self, *logits.factors)  # type: ignore[no-untyped-call]
        return _OfRows.apply(self, logits)  # type: ignore[no-untyped-call]

    def total(self, losses: Tensor) -> Tensor:
        """Return the loss, given those of all rows."""
        return self.add(losses if self.factors is None else losses * self.factors) / self.divisor


class _OfRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: RowLoss, logits: Tensor) -> Tensor:
        logits = logits.contiguous()
        losses, gradient = logits.new_empty(len(logits)), None
        if ctx.needs_input_grad[1]:
            gradient = memory_of(logits).empty(logits, logits.shape)
            ctx.save_for_backward(gradient)
        into = None if gradient is None else gradient.numpy()
        loss.write(slice(None), logits.detach().numpy(), losses.numpy(), into)
        return loss.total(losses)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_scaled(ctx.saved_tensors, gradients[0])


class _OfMap(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, loss: RowLoss, rows: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        (num_rows, width), narrow = rows.shape, like_rows(weight, rows)
        losses, for_weight = weight.new_empty(num_rows), torch.zeros_like(weight)
        for_rows = memory_of(rows).empty(rows, rows.shape) if ctx.needs_input_grad[1] else None
        for_bias = None if bias is None else torch.zeros_like(bias)
        gradients = for_rows, for_weight, for_bias
        ctx.save_for_backward(*gradients)
        if maps_by_kernel(rows, weight):
            operands = rows, narrow.to(weight.dtype).contiguous(), bias
            loss.write(slice(None), _logit_map(operands), losses.numpy(), _logit_map(gradients))
            return loss.total(losses)
        step = max(1, _CHUNK_BYTES // (weight.element_size() * (width + len(weight))))
        buffer = memory_of(weight).empty(weight, (min(step, num_rows), len(weight)))
        for start in range(0, num_rows, step):
            chunk = slice(start, start + step)
            part = rows[chunk]
            logits = multiply(part, narrow.t(), buffer[: len(part)], bias)
            loss.write(chunk, logits.numpy(), losses[chunk].numpy(), logits.numpy())
            gradient = narrowed(logits, narrow.dtype, [narrow])
            for_weight += weight_gradient(gradient, part)
            _, sums = epilogue_gradient(gradient, None, None, of_bias=bias is not None)
            if for_bias is not None and sums is not None:
                for_bias += sums
            if for_rows is not None:
                multiply(gradient, narrow, for_rows[chunk])
        return loss.total(losses)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_scaled(ctx.saved_tensors, gradients[0])


def _logit_map(operands: tuple[Tensor | None, ...]) -> kernels.LogitMap:
    arrays: list[Any] = [
        None if each is None else memory_of(each).array(each.detach()) for each in operands
    ]
    return kernels.LogitMap(*arrays)


def _scaled(saved: tuple[Tensor | None, ...], of_loss: Tensor) -> list[Tensor | None]:
    """Return the saved gradients times the gradient of the loss."""
    factor = of_loss.item()
    # The factor is usually 1: the loss is the end of the graph.
    if factor == 1:
        return list(saved)
    return [None if gradient is None else gradient * factor for gradient in saved]
