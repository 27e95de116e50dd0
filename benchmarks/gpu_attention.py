"""A GAT layer, forward and backward, on the fused GPU kernels; torch computes the linear map.

A peer's layer has the same operands: x (n, f), W (f, H * D), and vectors (H, D) for both terms of
the logits. All four get a gradient.
"""

from dataclasses import dataclass
from typing import Any

import torch

from hpcgnn import kernels
from hpcgnn.autograd.cupy_bridge import as_device_array, shared_stream
from hpcgnn.kernels import cuda

__all__ = ["FusedAttention", "Gradients"]

SLOPE = 0.2


@dataclass(frozen=True)
class Gradients:
    """Gradients of the operands of the layer, in their order."""

    x: torch.Tensor
    weight: torch.Tensor
    source: torch.Tensor
    target: torch.Tensor


class FusedAttention:
    """One layer on a square pattern; the groups of both directions are built once.

    Parameters
    ----------
    pattern, transpose
        ``(indptr, indices)`` in device memory.
    heads
        H; the width of a head follows from the weight.
    """

    def __init__(self, pattern: tuple[Any, Any], transpose: tuple[Any, Any], heads: int) -> None:
        size, self._heads = cuda.ATTENTION_GROUP_SIZE, heads
        self._block, self._transposed = (
            kernels.Block(*each, groups=cuda.DeviceGroups.of(each[0], size))
            for each in (pattern, transpose)
        )

    def run(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        source: torch.Tensor,
        target: torch.Tensor,
        grad: torch.Tensor,
    ) -> tuple[torch.Tensor, Gradients]:
        """Return the result (n, H * D) and all gradients, given that of the result, `grad`."""
        z = x @ weight
        parts = [self._share(z, vector) for vector in (source, target)]
        top = torch.full_like(parts[0], -torch.inf)
        total, out = torch.zeros_like(top), torch.empty_like(z)
        state = kernels.SoftmaxState(*(as_device_array(tensor) for tensor in (top, total, out)))
        values, from_source, from_target = (as_device_array(tensor) for tensor in (z, *parts))
        score = kernels.AdditiveScore(
            values=values,
            source=from_source,
            target=from_target,
            slope=SLOPE,
            weights=as_device_array(source),
        )
        with shared_stream():
            cuda.attention_forward(self._block, score, state)
            cuda.attention_finish(state)
        dz, dtarget, dsource_vector = self._backward(score, state, source, grad)
        # The contribution through target, which is <target vector, z>.
        heads = z.unflatten(1, (self._heads, -1))
        dtarget_vector = torch.einsum("nh,nhd->hd", dtarget, heads)
        dz += (dtarget[:, :, None] * target).flatten(1)
        grads = Gradients(dz @ weight.T, x.T @ dz, dsource_vector, dtarget_vector)
        return out, grads

    def _share(self, z: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        share = z.new_empty((len(z), self._heads))
        with shared_stream():
            cuda.attention_scores(*(as_device_array(tensor) for tensor in (z, vector, share)))
        return share

    def _backward(
        self,
        score: kernels.AdditiveScore,
        state: kernels.SoftmaxState,
        source: torch.Tensor,
        grad: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        dz, dsource = torch.zeros_like(grad), grad.new_zeros((len(grad), self._heads))
        dtarget, dvector, delta = torch.zeros_like(dsource), torch.zeros_like(source), dsource + 0
        gradient, inner = as_device_array(grad), as_device_array(delta)
        written = (as_device_array(tensor) for tensor in (dz, dtarget, dvector, dsource))
        saved = kernels.SoftmaxGradient(state.top, gradient, inner)
        with shared_stream():
            cuda.attention_delta(gradient, state.out, inner)
            cuda.attention_backward(self._transposed, score, saved, kernels.Gradients(*written))
        return dz, dtarget, dvector
