"""What every model receives and returns.

Shape suffixes in this package: N local nodes, F input features, H hidden width, C classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from torch import Tensor, nn

from hpcgnn.autograd import DropoutKey
from hpcgnn.sparse import AggregationOperator
from hpcgnn.typing import GlobalIndices

__all__ = ["Aggregations", "GraphView", "LayerView", "Model", "ModelShape"]


class Aggregations(Enum):
    """The scaled adjacency matrices that a model can ask for."""

    SYMMETRIC = "symmetric"
    """D^-1/2 (A + I) D^-1/2."""
    MEAN_IN = "mean_in"
    """The mean over the nodes that a node aggregates from."""
    MEAN_OUT = "mean_out"
    """The mean over the nodes that aggregate from a node; absent on undirected graphs."""


@dataclass(frozen=True, eq=False)
class LayerView:
    """The local share of a graph as one layer sees it.

    Parameters
    ----------
    operators
        The aggregations that the model asked for, from input rows to output rows.
    node_ids
        (input rows,) int64 original ids.
    kept
        (output rows,) int64 position of each output row among the input rows; None when a layer
        returns a row for every input row.
    """

    operators: Mapping[Aggregations, AggregationOperator]
    node_ids: GlobalIndices
    kept: Tensor | None = None

    def own(self, x: Tensor) -> Tensor:
        """Return the input rows of the output nodes."""
        return x if self.kept is None else x[self.kept]


@dataclass(frozen=True, eq=False)
class GraphView:
    """The local share of a graph as a model sees it.

    Parameters
    ----------
    operators
        The aggregations that the model asked for, over all local nodes.
    node_ids
        (N,) int64 original ids of the local nodes.
    active
        A view for each layer, when only the outputs of some nodes are wanted; otherwise empty, and
        every layer sees all local nodes.
    """

    operators: Mapping[Aggregations, AggregationOperator]
    node_ids: GlobalIndices
    active: tuple[LayerView, ...] = ()

    def layer(self, place: int) -> LayerView:
        """Return the view of a layer."""
        return self.active[place] if self.active else LayerView(self.operators, self.node_ids)


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a model; all ranks build it from the same seed.

    Parameters
    ----------
    num_features, num_classes, hidden
        Widths F, C and H.
    num_layers
        Number of aggregations, at least 1.
    dropout
        Probability for the input of every layer after the first.
    input_dropout
        Probability for the features.
    residual
        Add a learned linear map of a layer's own input to its output.
    """

    num_features: int
    num_classes: int
    hidden: int
    num_layers: int
    dropout: float = 0.0
    input_dropout: float = 0.0
    residual: bool = False

    def widths(self) -> list[int]:
        """Return the num_layers + 1 widths from features to classes."""
        return [self.num_features, *[self.hidden] * (self.num_layers - 1), self.num_classes]

    def dropout_before(self, layer: int) -> float:
        """Return the dropout probability of the input of `layer`."""
        return self.input_dropout if layer == 0 else self.dropout


class Model(nn.Module, ABC):
    """A node model. Subclasses name the `aggregations` they need and implement `forward`.

    Not collective.

    Parameters
    ----------
    shape
        Its sizes.
    directed
        Whether the graph has a second direction to aggregate along.
    """

    aggregations: ClassVar[tuple[Aggregations, ...]] = ()

    def __init__(self, shape: ModelShape, *, directed: bool) -> None:
        super().__init__()
        self.shape, self.directed = shape, directed

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

    @abstractmethod
    def input_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the first layer."""
