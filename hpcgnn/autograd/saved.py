"""Results of layers that wait for the backward pass in 16 bits."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

__all__ = ["ACTIVATION_FORMATS", "activations_as"]

ACTIVATION_FORMATS = ("native", "bfloat16")
"""Names of the formats in which activations are kept; native is the dtype of training."""


def activations_as(name: str, resident: Iterable[Tensor]) -> AbstractContextManager[object]:
    """Keep what the enclosed forward pass saves for its backward pass in another format.

    Not collective.

    Products and sums stay in float32, and so do weights: only float32 results of operations are
    rounded, when they are saved, and widened when the backward pass asks for them. float64 is
    never narrowed.

    Parameters
    ----------
    name
        One of `ACTIVATION_FORMATS`.
    resident
        Features and weights: they stay in memory anyway, so a rounded copy would cost bytes.
    """
    if name == "native":
        return nullcontext()
    memory = {each.untyped_storage().data_ptr() for each in resident}

    def narrow(saved: Tensor) -> Tensor:
        if saved.dtype != torch.float32 or saved.untyped_storage().data_ptr() in memory:
            return saved
        return saved.to(torch.bfloat16)

    return torch.autograd.graph.saved_tensors_hooks(narrow, _widen)


def _widen(kept: Tensor) -> Tensor:
    return kept.to(torch.float32) if kept.dtype == torch.bfloat16 else kept
