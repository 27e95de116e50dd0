"""Models of graphs with node types: every type has an input layer of its own.

The input layer of type t maps its features to the one width that the first graph layer reads:
``H_i = W_t x_i + b_t``. Without features only ``b_t`` is left, a learned vector that all nodes of
the type share, and each node may have a vector of its own beside it. What follows is any model of
one kind of node.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpcgnn.autograd import DropoutKey, linear_by_type
from hpcgnn.nn.model import GraphView, Model, NodeModel
from hpcgnn.nn.node_vectors import draw_vectors
from hpcgnn.nn.typed_rows import TypedRows
from hpcgnn.typing import GlobalIndices

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
        self.vectors = nn.ParameterDict()

    def add_vectors(self, node_ids: Mapping[int, GlobalIndices], seed: int) -> None:
        """Give each node of some types a vector of its own.

        Not collective. The rows that this module reads must then have their `numbers`.

        Parameters
        ----------
        node_ids
            By the number of the type: (n_t,) int64 original ids of this rank's nodes.
        seed
            Of the vectors, which are equal at any number of ranks.
        """
        like = self.biases[0]
        for number, ids in node_ids.items():
            vectors = torch.from_numpy(draw_vectors(ids, len(like), seed))
            self.vectors[str(number)] = nn.Parameter(vectors.to(like))
            self.register_buffer(f"ids_{number}", torch.tensor(ids, device=like.device))

    def forward(self, x: TypedRows) -> Tensor:
        """Return (N, out_width)."""
        out = linear_by_type(x.rows, x.parts, list(self.weights), list(self.biases))
        for number, vectors in self.vectors.items():
            assert x.numbers is not None
            rows = x.rows[int(number)]
            out.index_add_(0, rows, vectors.index_select(0, x.numbers[rows]))
        return out


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

    def own_rows(self) -> Mapping[str, str]:
        """Return the vectors of nodes and their ids."""
        ids = {number: f"inputs.ids_{number}" for number in self.inputs.vectors}
        vectors = {f"inputs.vectors.{number}": name for number, name in ids.items()}
        return {**vectors, **{name: name for name in ids.values()}}
