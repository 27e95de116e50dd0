"""Losses whose forward pass also computes the gradient, since both share exponentials."""

from typing import Any

from torch import Tensor

from hpcgnn.autograd.memory import memory_of


def empty_gradient(ctx: Any, logits: Tensor) -> Any:
    """Return an array for the gradient of logits, saved in `ctx`; None if it is not needed."""
    if not ctx.needs_input_grad[0]:
        return None
    memory = memory_of(logits)
    gradient = memory.empty(logits, logits.shape)
    ctx.save_for_backward(gradient)
    return memory.array(gradient)


def gradient_of(ctx: Any, of_loss: Tensor) -> Tensor:
    """Return the saved gradient, times the gradient of the loss."""
    (gradient,) = ctx.saved_tensors
    factor = of_loss.item()
    # The factor is usually 1: the loss is the end of the graph.
    result: Tensor = gradient if factor == 1 else gradient * factor
    return result
