"""How the messages of one step reach the nodes: along a sparse pattern, in a band, or both.

All give ``sum_p A_p E W_p`` and the bias of each type for every edge, over the edges they keep.
"""

import copy
from functools import partial
from typing import Literal, Protocol

import torch
from torch import Tensor

from hpcgnn.autograd import aggregate, typed_linear
from hpcgnn.autograd.band import TorchBand
from hpcgnn.banded import BandedOperator, Supernodes, TypedEdges, TypedPairs, held_edges
from hpcgnn.banded.device import DevicePairs
from hpcgnn.errors import InputError
from hpcgnn.trace import TraceRecorder

__all__ = [
    "PROPAGATORS",
    "BandedPropagator",
    "HybridPropagator",
    "Propagator",
    "PropagatorName",
    "SparsePropagator",
    "make_propagator",
]

PropagatorName = Literal["sparse", "banded", "hybrid"]
PROPAGATORS: tuple[PropagatorName, ...] = ("sparse", "banded", "hybrid")


class Propagator(Protocol):
    """The edges of a supergraph, ready for all steps.

    Attributes
    ----------
    dropped
        Edges that carry no messages.
    """

    dropped: int

    def on_gpu(self, place: torch.device, precision: str) -> "Propagator":
        """Return the same on the current GPU; a band multiplies with this precision."""
        ...

    def __call__(self, state_NH: Tensor, weight_PHH: Tensor, bias_PH: Tensor) -> Tensor:
        """Return the messages (N, H) that reach each node."""
        ...


class SparsePropagator:
    """Products with a sparse pattern: sums by node and type, a map for each type, sums by node.

    Not collective.

    Parameters
    ----------
    edges
        All of these carry messages.
    dtype
        torch.float32 or torch.float64.
    trace
        Where the time goes.
    dropped
        Edges that the caller has left out.
    """

    def __init__(
        self, edges: TypedEdges, dtype: torch.dtype, trace: TraceRecorder, dropped: int = 0
    ) -> None:
        self.dropped = dropped
        self._pairs: TypedPairs | DevicePairs = TypedPairs(edges, trace)
        self._counts_NP = torch.from_numpy(edges.counts()).to(dtype)

    def on_gpu(self, place: torch.device, precision: str) -> "SparsePropagator":
        """Return the same on the current GPU.

        Not collective.
        """
        del precision
        assert isinstance(self._pairs, TypedPairs)
        found = copy.copy(self)
        found._pairs = DevicePairs.upload(self._pairs)
        found._counts_NP = self._counts_NP.to(place)
        return found

    def __call__(self, state_NH: Tensor, weight_PHH: Tensor, bias_PH: Tensor) -> Tensor:
        """Return the messages (N, H) that reach each node.

        Not collective.
        """
        sums_QH = aggregate(self._pairs.gather, state_NH)
        mapped_QH = typed_linear(sums_QH, weight_PHH, self._pairs.type_starts)
        return torch.addmm(aggregate(self._pairs.scatter, mapped_QH), self._counts_NP, bias_PH)


class BandedPropagator:
    """Algorithm 1: three batched products of dense blocks, then one map for all types together.

    Not collective.

    Parameters
    ----------
    edges
        Those inside the band carry messages.
    block
        S, the size of the blocks.
    dtype
        torch.float32 or torch.float64.
    trace
        Where the time goes.
    supernodes
        Nodes whose edges all carry messages, through dense rows and columns beside the blocks.
    """

    def __init__(
        self,
        edges: TypedEdges,
        block: int,
        dtype: torch.dtype,
        trace: TraceRecorder,
        supernodes: Supernodes | None,
    ) -> None:
        number = torch.empty(0, dtype=dtype).numpy().dtype.type
        self.operator = BandedOperator(edges, block, number, trace, supernodes)
        self.dropped = self.operator.dropped
        kept = edges.select(held_edges(edges, block, supernodes))
        self._counts_NP = torch.from_numpy(kept.counts()).to(dtype)
        self._multiply: partial[Tensor] | TorchBand = partial(aggregate, self.operator)

    def on_gpu(self, place: torch.device, precision: str) -> "BandedPropagator":
        """Return the same on a GPU.

        Not collective.
        """
        found = copy.copy(self)
        found._multiply = TorchBand(self.operator, precision, place)
        found._counts_NP = self._counts_NP.to(place)
        return found

    def __call__(self, state_NH: Tensor, weight_PHH: Tensor, bias_PH: Tensor) -> Tensor:
        """Return the messages (N, H) that reach each node.

        Not collective.
        """
        num_types, width, out_width = weight_PHH.shape
        sums = self._multiply(state_NH).view(-1, num_types * width)
        mapped_NH = sums @ weight_PHH.view(num_types * width, out_width)
        return torch.addmm(mapped_NH, self._counts_NP, bias_PH)


class HybridPropagator:
    """The band as dense blocks and the remaining edges as a sparse pattern: nothing is dropped.

    Not collective.

    Parameters are those of `BandedPropagator`.
    """

    dropped = 0

    def __init__(
        self,
        edges: TypedEdges,
        block: int,
        dtype: torch.dtype,
        trace: TraceRecorder,
        supernodes: Supernodes | None,
    ) -> None:
        self._banded = BandedPropagator(edges, block, dtype, trace, supernodes)
        outside = edges.select(~held_edges(edges, block, supernodes))
        self.remainder = len(outside)
        self._sparse = SparsePropagator(outside, dtype, trace) if self.remainder else None

    def on_gpu(self, place: torch.device, precision: str) -> "HybridPropagator":
        """Return the same on the current GPU.

        Not collective.
        """
        found = copy.copy(self)
        found._banded = self._banded.on_gpu(place, precision)
        found._sparse = None if self._sparse is None else self._sparse.on_gpu(place, precision)
        return found

    def __call__(self, state_NH: Tensor, weight_PHH: Tensor, bias_PH: Tensor) -> Tensor:
        """Return the messages (N, H) that reach each node.

        Not collective.
        """
        messages_NH = self._banded(state_NH, weight_PHH, bias_PH)
        if self._sparse is None:
            return messages_NH
        return messages_NH + self._sparse(state_NH, weight_PHH, bias_PH)


def make_propagator(
    name: PropagatorName,
    edges: TypedEdges,
    *,
    block: int,
    dtype: torch.dtype,
    trace: TraceRecorder,
    supernodes: Supernodes | None = None,
) -> Propagator:
    """Return the propagator called `name` over `edges`.

    Not collective.

    Parameters
    ----------
    name
        One of `PROPAGATORS`.
    edges
        The edges of a supergraph.
    block
        S; for "sparse", edges that such blocks do not hold are left out, and 0 keeps all.
    dtype
        torch.float32 or torch.float64.
    trace
        Where the time goes.
    supernodes
        Nodes whose edges are held whatever the block size.
    """
    if name == "sparse":
        if block == 0:
            return SparsePropagator(edges, dtype, trace)
        kept = edges.select(held_edges(edges, block, supernodes))
        return SparsePropagator(kept, dtype, trace, len(edges) - len(kept))
    if block < 1:
        raise InputError(f"block {block}: the propagator {name} needs a block size of at least 1")
    kind = BandedPropagator if name == "banded" else HybridPropagator
    return kind(edges, block, dtype, trace, supernodes)
