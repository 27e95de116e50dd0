"""What every model receives and returns.

Shape suffixes in this package: N local nodes, F input features, H hidden width, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from torch import Tensor, nn

from hpcgnn.autograd import DropoutKey
from hpcgnn.sparse import AggregationOperator
from hpcgnn.typing import GlobalIndices

__all__ = ["Aggregations", "GraphView", "Model", "ModelShape", "linear_first"]


class Aggregations(Enum):
    """The scaled adjacency matrices that a model can ask for."""

    SYMMETRIC = "symmetric"
    """D^-1/2 (A + I) D^-1/2."""
    MEAN_IN = "mean_in"
    """The mean over the nodes that a node aggregates from."""
    MEAN_OUT = "mean_out"
    """The mean over the nodes that aggregate from a node; absent on undirected graphs."""


@dataclass(frozen=True, eq=False)
class GraphView:
    """The local share of a graph as a model sees it.

    Parameters
    ----------
    operators
        The aggregations that the model asked for.
    node_ids
        (N,) int64 original ids of the local nodes.
    """

    operators: Mapping[Aggregations, AggregationOperator]
    node_ids: GlobalIndices


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


class Model(nn.Module):
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

    def forward(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> Tensor:
        """Return logits (N, C).

        Collective.

        Parameters
        ----------
        graph
            Operators and node ids of this rank.
        x_NF
            Features of the local nodes.
        key
            The draw of dropout masks; None evaluates.
        """
        raise NotImplementedError(type(self).__name__)

    def embed(self, graph: GraphView, x_NF: Tensor) -> Tensor:
        """Return the input of the last layer (N, H), without dropout.

        Collective.
        """
        raise NotImplementedError(type(self).__name__)

    def input_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the first layer."""
        raise NotImplementedError(type(self).__name__)


def linear_first(operator: AggregationOperator, in_width: int, out_width: int) -> bool:
    """Whether A (X W) moves and multiplies fewer columns than (A X) W.

    Not collective.
    """
    rows, columns = operator.shape
    return out_width * columns <= in_width * rows
