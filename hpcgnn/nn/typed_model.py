"""Models of graphs with node types: every type has an input layer of its own.

The input layer of type t maps its features to the one width that the first graph layer reads:
``H_i = W_t x_i + b_t``. Without features only ``b_t`` is left, a learned vector that all nodes of
the type share. What follows is any model of one kind of node.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpcgnn.autograd import DropoutKey, linear_by_type
from hpcgnn.nn.model import GraphView, Model, NodeModel
from hpcgnn.nn.typed_rows import TypedRows

__all__ = ["InputLayers", "TypedModel"]


class InputLayers(nn.Module):
    """A linear map for each node type.

    Not collective.

    Parameters
    ----------
    in_widths
        Features F_t of each type; 0 without any.
    out_width
        Columns of the result.
    """

    def __init__(self, in_widths: Sequence[int], out_width: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.empty(out_width, width) for width in in_widths)
        self.biases = nn.ParameterList(torch.zeros(out_width) for _ in in_widths)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            if weight.shape[1] > 0:
                nn.init.xavier_uniform_(weight)
            else:
                # About as long as a row of the others for features of length 1.
                nn.init.normal_(bias, std=out_width**-0.5)

    def forward(self, x: TypedRows) -> Tensor:
        """Return (N, out_width)."""
        return linear_by_type(x.rows, x.parts, list(self.weights), list(self.biases))


class TypedModel(NodeModel):
    """Input layers of node types before a model that knows one kind of node.

    Not collective.

    Parameters
    ----------
    type_widths
        Features of each node type.
    body
        Reads the result of the input layers in place of features, and so has its gradient.
    """

    def __init__(self, type_widths: Sequence[int], body: Model) -> None:
        super().__init__()
        self.inputs = InputLayers(type_widths, body.shape.first_width)
        self.body = body

    def forward(self, graph: GraphView, x: TypedRows, key: DropoutKey | None) -> Tensor:
        """Return logits as `Model.forward` does.

        Collective.

        Parameters
        ----------
        graph, key
            As for `Model.forward`; the dropout of features acts on the rows of the input layers.
        x
            Features of the local nodes, or of the first active layer's input rows.
        """
        logits: Tensor = self.body(graph, self.inputs(x), key)
        return logits

    def embed(self, graph: GraphView, x: Any) -> Tensor:
        """Return the input of the last layer (N, H), without dropout.

        Collective.
        """
        return self.body.embed(graph, self.inputs(x))

    def input_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the input layers and of the first graph layer.

        Nothing between them bends, so that they are one map of the features.
        """
        return [*self.inputs.parameters(), *self.body.input_parameters()]
