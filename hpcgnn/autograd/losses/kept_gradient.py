"""The gradient of a loss, which the pass that computes the loss writes: it shares exponentials."""

from typing import Any

from torch import Tensor

from hpcgnn.autograd.memory import memory_of


def empty_gradient(ctx: Any, logits: Tensor) -> Any:
    """Return an array for the gradient of logits, which waits; None where nobody asks for it."""
    if not ctx.needs_input_grad[0]:
        return None
    memory = memory_of(logits)
    gradient = memory.empty(logits, logits.shape)
    ctx.save_for_backward(gradient)
    return memory.array(gradient)


def gradient_of(ctx: Any, of_loss: Tensor) -> Tensor:
    """Return what waited, times the gradient of the loss."""
    (gradient,) = ctx.saved_tensors
    factor = of_loss.item()
    # It mostly is 1, of a loss that nothing else is made of.
    result: Tensor = gradient if factor == 1 else gradient * factor
    return result
