"""What every model receives and returns.

Shape suffixes in this package: N local nodes, F input features, H hidden width, C classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar

from torch import Tensor, nn

from hpcgnn.autograd import DropoutKey, memory_of
from hpcgnn.nn.shape import ModelShape
from hpcgnn.sparse import AggregationOperator, RankSums
from hpcgnn.typing import GlobalIndices, LocalIndices

__all__ = [
    "REVERSED",
    "WITH_SELF_LOOPS",
    "Aggregations",
    "GraphView",
    "LayerView",
    "Model",
    "NodeModel",
    "TrainableModule",
]


class Aggregations(Enum):
    """The scaled adjacency matrices that a model can ask for."""

    SYMMETRIC = "symmetric"
    """D^-1/2 (A + I) D^-1/2."""
    MEAN_IN = "mean_in"
    """The mean over the nodes that a node aggregates from."""
    MEAN_OUT = "mean_out"
    """The mean over the nodes that aggregate from a node; absent on undirected graphs."""
    SUM_IN = "sum_in"
    """The sum over the nodes that a node aggregates from: A itself."""
    SUM_OUT = "sum_out"
    """The sum over the nodes that aggregate from a node; absent on undirected graphs."""
    MEAN_BY_RELATION = "mean_by_relation"
    """For every relation the mean over a node's neighbours; only nodes that have some get a row."""

    ATTENTION = "attention"
    """A + I without weights, an `AttentionOperator`."""


REVERSED = frozenset({Aggregations.MEAN_OUT, Aggregations.SUM_OUT})
"""Aggregations along out-edges, which undirected graphs do not have."""

WITH_SELF_LOOPS = frozenset({Aggregations.SYMMETRIC, Aggregations.ATTENTION})
"""Aggregations over a node's neighbours and the node itself."""


@dataclass(frozen=True, eq=False)
class LayerView:
    """The local share of a graph as one layer sees it.

    Parameters
    ----------
    operators
        The aggregations that the model asked for, from input rows to output rows.
    node_ids
        (input rows,) int64 original ids; a CuPy array where rows are on a GPU.
    sums
        Adds up an array over the block rows.
    kept
        (output rows,) int64 position of each output row among the input rows; None when a layer
        returns a row for every input row.
    following
        The further aggregations of a layer that aggregates several times; `operators` and `kept`
        are the first one's.
    relation_rows
        Where the rows of MEAN_BY_RELATION belong: for each relation an int32 array with the output
        row of each of its nodes, in the order of the result, as for `node_ids`.
    """

    operators: Mapping[Aggregations, AggregationOperator]
    node_ids: GlobalIndices
    sums: RankSums
    kept: Tensor | None = None
    following: tuple["LayerView", ...] = ()
    relation_rows: tuple[LocalIndices, ...] = ()

    @property
    def steps(self) -> tuple["LayerView", ...]:
        """The aggregations of the layer, one after the other."""
        return (replace(self, following=()), *self.following)

    def own(self, x: Tensor) -> Tensor:
        """Return the input rows of the output nodes."""
        return self.after(0, x)

    def after(self, num_steps: int, x: Tensor) -> Tensor:
        """Return the output nodes' rows of `x`, which holds the rows after so many aggregations."""
        for step in (self, *self.following)[num_steps:]:
            if step.kept is not None:
                x = x[step.kept]
        return x

    @property
    def output_ids(self) -> GlobalIndices:
        """(output rows,) int64 original ids."""
        ids = self.node_ids
        for step in (self, *self.following):
            if step.kept is not None:
                ids = ids[memory_of(step.kept).array(step.kept)]
        return ids


@dataclass(frozen=True, eq=False)
class GraphView:
    """The local share of a graph as a model sees it.

    Parameters
    ----------
    operators
        The aggregations that the model asked for, over all local nodes.
    node_ids
        (N,) int64 original ids of the local nodes, as in `LayerView`.
    sums
        Adds up an array over the block rows.
    active
        A view for each aggregation of the model, one after the other, when only the outputs of some
        nodes are wanted; otherwise empty, and every layer sees all local nodes.
    relation_rows
        As in `LayerView`, over all local nodes.
    """

    operators: Mapping[Aggregations, AggregationOperator]
    node_ids: GlobalIndices
    sums: RankSums
    active: tuple[LayerView, ...] = ()
    relation_rows: tuple[LocalIndices, ...] = ()

    def layer(self, place: int, steps: int = 1) -> LayerView:
        """Return the view of a layer of a model whose layers aggregate `steps` times."""
        if self.active:
            first, *following = self.active[place * steps : (place + 1) * steps]
        else:
            whole = LayerView(
                self.operators, self.node_ids, self.sums, relation_rows=self.relation_rows
            )
            first, following = whole, [whole] * (steps - 1)
        return replace(first, following=tuple(following)) if following else first


class TrainableModule(nn.Module, ABC):
    """What the training loop can train."""

    @abstractmethod
    def input_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the first layer, which may decay apart from the others."""

    def own_rows(self) -> Mapping[str, str]:
        """Return the parameters and buffers that have a row for each of some nodes of this rank.

        Ranks hold other rows of these, and hold all other parameters alike. The values are names of
        buffers with the original ids of the nodes, which are among the keys.
        """
        return {}


class NodeModel(TrainableModule):
    """What tells the class of nodes, called with a graph, features and a draw of dropout masks."""

    @abstractmethod
    def embed(self, graph: GraphView, x: Any) -> Tensor:
        """Return the input of the last layer (N, H), without dropout.

        Collective.

        Parameters
        ----------
        graph
            Operators and node ids of this rank.
        x
            Features of the local nodes, as the model takes them.
        """


class Model(NodeModel):
    """A model of one kind of node; subclasses name their `aggregations` and implement `forward`.

    Not collective.

    Parameters
    ----------
    shape
        Its sizes.
    directed
        Whether the graph has a second direction to aggregate along.
    """

    aggregations: ClassVar[tuple[Aggregations, ...]] = ()
    options: ClassVar[frozenset[str]] = frozenset()
    """Fields of `ModelShape` beside the sizes and dropout that the model heeds."""

    def __init__(self, shape: ModelShape, *, directed: bool) -> None:
        super().__init__()
        self.shape, self.directed = shape, directed

    @classmethod
    def num_aggregations(cls, shape: ModelShape) -> int:
        """Return how many times in a row the model aggregates: how far a node sees."""
        return shape.num_layers

    @classmethod
    def num_feature_products(cls, shape: ModelShape) -> int:
        """Return how many times in a row the model aggregates the features as they are.

        Not collective.
        """
        del shape
        return 0

    @classmethod
    def check(cls, shape: ModelShape) -> None:
        """Raise an `InputError`, naming a remedy, when options do not fit each other.

        Not collective.
        """
        del shape

    @abstractmethod
    def forward(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> Tensor:
        """Return logits: (N, C), or those of the last active layer's output rows.

        Collective.

        Parameters
        ----------
        graph
            Operators and node ids of this rank.
        x_NF
            Features of the local nodes, or of the first active layer's input rows.
        key
            The draw of dropout masks; None evaluates.
        """

    @abstractmethod
    def embed(self, graph: GraphView, x_NF: Tensor) -> Tensor:
        """Return the input of the last layer (N, H), without dropout.

        Collective.
        """
