"""Graph-level prediction: a read-out of a graph's nodes followed by a linear map.

Shape suffixes: N local nodes, G graphs that this rank owns, H width of the encoder.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import (
    DropoutKey,
    GraphMembers,
    dropout,
    max_of_graphs,
    mean_of_graphs,
    softmax_of_graphs,
    sum_of_graphs,
)
from hpcgnn.nn.linear import Linear
from hpcgnn.nn.model import EncoderModel, GraphView, NodeModel, weights_from_seed
from hpcgnn.spmd import collective

_LAYER = -2
"""The layer number of the head's dropout; layers of models count from 0."""


class Readout(nn.Module, ABC):
    """Reduces the rows of each graph's nodes to a row of the graph."""

    @abstractmethod
    @collective
    def forward(self, x_NH: Tensor, members: GraphMembers) -> Tensor:
        """Return the rows (G, H) of graphs."""


class _Plain(Readout):
    """A read-out without weights."""

    def __init__(self, reduce: Callable[[Tensor, GraphMembers], Tensor]) -> None:
        super().__init__()
        self._reduce = reduce

    @collective
    @override
    def forward(self, x_NH: Tensor, members: GraphMembers) -> Tensor:
        return self._reduce(x_NH, members)


class AttentionReadout(Readout):
    """``Σ_i softmax_i(a · x_i + b) x_i`` (Li et al., ICLR 2016, with a linear gate)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = Linear(width, 1)

    @collective
    @override
    def forward(self, x_NH: Tensor, members: GraphMembers) -> Tensor:
        return softmax_of_graphs(x_NH, self.gate(x_NH), members)


READOUTS: Mapping[str, Callable[[int], Readout]] = {
    "mean": lambda _width: _Plain(mean_of_graphs),
    "sum": lambda _width: _Plain(sum_of_graphs),
    "max": lambda _width: _Plain(max_of_graphs),
    "attention": AttentionReadout,
}
"""Names -> functions that make a read-out, given a width."""


class GraphModel(EncoderModel):
    """An encoder of nodes, a read-out of its logits, and a linear map to logits of each graph.

    `dropout` is the dropout probability of the input of the linear map.
    """

    def __init__(self, encoder: NodeModel, readout: Readout, head: Linear, dropout: float) -> None:
        super().__init__(encoder)
        self.readout, self.head = readout, head
        self._dropout = dropout

    @collective
    def forward(self, graph: GraphView, x: Any, key: DropoutKey | None) -> Tensor:
        """Return logits (G, C) of the graphs that this rank owns."""
        assert graph.members is not None
        rows = self.readout(self.encoder(graph, x, key), graph.members)
        draw = None if key is None else key.at(_LAYER)
        return self.head(dropout(rows, graph.members.ids, draw, self._dropout))

    @collective
    @override
    def embed(self, graph: GraphView, x: Any) -> Tensor:
        assert graph.members is not None
        return self.readout(self.encoder(graph, x, None), graph.members)


def make_graph_model(
    encoder: NodeModel, readout: str, *, width: int, num_classes: int, dropout: float, seed: int
) -> GraphModel:
    """Return the model, equal on all ranks for equal arguments; `readout` is a name in `READOUTS`.

    All weights after the encoder are drawn from `seed`; torch's global generator is not changed.
    """
    like = next(encoder.parameters())
    with weights_from_seed(seed):
        readout_module, head = READOUTS[readout](width), Linear(width, num_classes)
    return GraphModel(encoder, readout_module, head, dropout).to(like.device, like.dtype)
