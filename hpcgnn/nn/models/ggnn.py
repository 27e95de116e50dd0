"""The gated graph neural network of the dense-hardware paper, and propagators of its messages.

A propagator computes the messages of one step with a sparse pattern, a band, or both: the sum of
``A_p E W_p`` over types p, plus the bias of its type for every edge, over the edges it keeps.

Shape suffixes: N nodes, H hidden width, P types of edges, Q rows of a propagator, M candidates.
"""

import copy
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpcgnn.autograd import DropoutKey, aggregate, dropout, memory_of, typed_linear
from hpcgnn.autograd.band import TorchBand
from hpcgnn.banded import BandedOperator, Supergraph, Supernodes, TypedEdges, TypedPairs, held_edges
from hpcgnn.errors import InputError
from hpcgnn.nn.model import TrainableModule, weights_from_seed
from hpcgnn.trace import TraceRecorder

PropagatorName = Literal["sparse", "banded", "hybrid"]
PROPAGATORS: tuple[PropagatorName, ...] = ("sparse", "banded", "hybrid")


class Propagator(Protocol):
    """The edges of a supergraph, prepared for all steps; `dropped` of them carry no messages."""

    dropped: int

    def on_gpu(self, device: torch.device, precision: str) -> "Propagator":
        """Return the same on the current GPU; `precision` is that of a band's products."""

    def __call__(self, state_NH: Tensor, weight_PHH: Tensor, bias_PH: Tensor) -> Tensor:
        """Return the messages (N, H) that reach each node."""


class SparsePropagator:
    """Products with a sparse pattern: sums by node and type, a map for each type, sums by node.

    All edges carry messages; `dropped` is the number of those that the caller left out.
    """

    def __init__(
        self, edges: TypedEdges, dtype: torch.dtype, trace: TraceRecorder, dropped: int = 0
    ) -> None:
        self.dropped = dropped
        self._pairs = TypedPairs.of(edges, trace)
        self._counts_NP = torch.from_numpy(edges.counts()).to(dtype)

    def on_gpu(self, device: torch.device, precision: str) -> "SparsePropagator":
        """Return the same on the current GPU."""
        moved = copy.copy(self)
        moved._pairs = self._pairs.on_device()
        moved._counts_NP = self._counts_NP.to(device)
        return moved

    def __call__(self, state_NH: Tensor, weight_PHH: Tensor, bias_PH: Tensor) -> Tensor:
        """Return the messages (N, H) that reach each node."""
        sums_QH = aggregate(self._pairs.gather, state_NH)
        mapped_QH = typed_linear(sums_QH, weight_PHH, self._pairs.type_starts)
        return torch.addmm(aggregate(self._pairs.scatter, mapped_QH), self._counts_NP, bias_PH)


class BandedPropagator:
    """Algorithm 1: three batched products of dense blocks, then one map for all types together.

    Edges inside the band of blocks of size `block`, S, carry messages, and all edges of supernodes
    do, through dense rows and columns beside the blocks.
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
        sparse_edges = edges.select(held_edges(edges, block, supernodes))
        self._counts_NP = torch.from_numpy(sparse_edges.counts()).to(dtype)
        self._multiply: partial[Tensor] | TorchBand = partial(aggregate, self.operator)

    def on_gpu(self, device: torch.device, precision: str) -> "BandedPropagator":
        """Return the same on a GPU."""
        moved = copy.copy(self)
        moved._multiply = TorchBand(self.operator, precision, device)
        moved._counts_NP = self._counts_NP.to(device)
        return moved

    def __call__(self, state_NH: Tensor, weight_PHH: Tensor, bias_PH: Tensor) -> Tensor:
        """Return the messages (N, H) that reach each node."""
        num_types, width, out_width = weight_PHH.shape
        sums = self._multiply(state_NH).view(-1, num_types * width)
        mapped_NH = sums @ weight_PHH.view(num_types * width, out_width)
        return torch.addmm(mapped_NH, self._counts_NP, bias_PH)


class HybridPropagator:
    """The band as dense blocks and the other edges as a sparse pattern; no edge is dropped."""

    dropped = 0

    def __init__(self, banded: BandedPropagator, sparse: SparsePropagator | None) -> None:
        self._banded, self._sparse = banded, sparse

    def on_gpu(self, device: torch.device, precision: str) -> "HybridPropagator":
        """Return the same on the current GPU."""
        moved = copy.copy(self)
        moved._banded = self._banded.on_gpu(device, precision)
        moved._sparse = None if self._sparse is None else self._sparse.on_gpu(device, precision)
        return moved

    def __call__(self, state_NH: Tensor, weight_PHH: Tensor, bias_PH: Tensor) -> Tensor:
        """Return the messages (N, H) that reach each node."""
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
    """Return the propagator `name` for `edges`, in float32 or float64.

    `block` is S. For "sparse", edges outside of such blocks are left out; 0 keeps all. Edges of
    supernodes are always kept.
    """
    if name == "sparse":
        if block == 0:
            return SparsePropagator(edges, dtype, trace)
        banded_edges = edges.select(held_edges(edges, block, supernodes))
        return SparsePropagator(banded_edges, dtype, trace, len(edges) - len(banded_edges))
    if block < 1:
        raise InputError(f"block {block}: the propagator {name} needs a block size of at least 1")
    banded = BandedPropagator(edges, block, dtype, trace, supernodes)
    if name == "banded":
        return banded
    outside = edges.select(~held_edges(edges, block, supernodes))
    return HybridPropagator(banded, SparsePropagator(outside, dtype, trace) if outside else None)


@dataclass(frozen=True, kw_only=True)
class GGNNShape:
    """Sizes of a model; sub-tokens are hashed to buckets, and `dropout` is for the messages."""

    num_buckets: int
    num_types: int
    hidden: int = 128
    steps: int = 8
    dropout: float = 0.0


class GGNN(TrainableModule):
    """Embeds the sub-tokens of nodes, passes messages in T gated steps, and scores candidates.

    ``E(t+1) = GRU(sum_p A_p E(t) W_p + b_p per edge, E(t))`` is equation (1) of the paper with a
    bias for every type. The weights do not depend on the propagator, so a model can be trained with
    one and evaluated with another.
    """

    def __init__(self, shape: GGNNShape) -> None:
        super().__init__()
        width = shape.hidden
        self.shape = shape
        self.embedding = nn.EmbeddingBag(shape.num_buckets, width, mode="mean")
        nn.init.normal_(self.embedding.weight, std=0.5)
        self.weight_PHH = nn.Parameter(torch.empty(shape.num_types, width, width))
        self.bias_PH = nn.Parameter(torch.zeros(shape.num_types, width))
        # A node gets messages of few types, so initialise as for one map, not for all stacked.
        nn.init.normal_(self.weight_PHH, std=width**-0.5)
        self.cell = nn.GRUCell(width, width)
        # A bias would shift all candidates by the same amount.
        self.readout = nn.Linear(width, 1, bias=False)

    def forward(self, graph: Supergraph, propagator: Propagator, key: DropoutKey | None) -> Tensor:
        """Return the logits (M,) of the candidates of `graph`; `propagator` is that of its edges.

        `key` is the key of dropout masks; None: evaluation.
        """
        device = self.bias_PH.device
        tokens = torch.from_numpy(graph.subtokens).to(device)
        starts = torch.from_numpy(graph.subtoken_starts).to(device)
        node_ids = torch.from_numpy(graph.node_ids).to(device)
        ids = memory_of(node_ids).array(node_ids)
        state_NH: Tensor = self.embedding(tokens, starts[:-1])
        for step in range(self.shape.steps):
            messages_NH = propagator(state_NH, self.weight_PHH, self.bias_PH)
            draw = None if key is None else key.at(step)
            messages_NH = dropout(messages_NH, ids, draw, self.shape.dropout)
            state_NH = self.cell(messages_NH, state_NH)
        scores: Tensor = self.readout(state_NH[torch.from_numpy(graph.candidates).to(device)])
        return scores.squeeze(1)


def make_ggnn(shape: GGNNShape, *, seed: int, dtype: torch.dtype) -> GGNN:
    """Return a new model, equal on all ranks for equal arguments; `dtype` is float32 or float64.

    Its weights are drawn in float64, so both start from the same values; torch's global generator
    is not changed.
    """
    with weights_from_seed(seed):
        model = GGNN(shape)
    return model.to(dtype)


def candidate_loss(
    logits_M: Tensor, graph: Supergraph, num_global: int, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return this rank's share of the mean cross entropy, and a mask (g,) of correct graphs.

    Each graph's softmax is over its own candidates. A smoothed target gives each of c candidates
    ``smoothing / c``, with smoothing in [0, 1), and the right one the rest. `num_global` is the
    number of graphs of all ranks, at least 1.
    """
    arrays = graph.candidate_graphs, graph.candidate_starts, graph.labels
    owners_M, starts, labels = (torch.from_numpy(array).to(logits_M.device) for array in arrays)
    counts = starts[1:] - starts[:-1]
    positions_M = torch.arange(len(owners_M), device=logits_M.device) - starts[owners_M]
    width = int(counts.max()) if graph.num_graphs else 1
    table = logits_M.new_full((graph.num_graphs, width), -torch.inf)
    table = table.index_put((owners_M, positions_M), logits_M)
    log_shares_M = functional.log_softmax(table, dim=1)[owners_M, positions_M]
    sums = logits_M.new_zeros(graph.num_graphs).index_add(0, owners_M, log_shares_M)
    right = log_shares_M[starts[:-1] + labels]
    target = (1 - smoothing) * right + smoothing * sums / counts
    return -target.sum() / num_global, table.argmax(dim=1) == labels
