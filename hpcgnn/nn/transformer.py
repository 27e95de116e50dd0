"""Graph transformer whose nodes attend to their in-neighbours (Shi et al., IJCAI 2021)."""

from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from hpcgnn.autograd import (
    DropoutKey,
    ProductHeads,
    attend_products,
    edge_draw,
    rematerialised,
    widened,
)
from hpcgnn.errors import InputError
from hpcgnn.kernels import EdgeDraw
from hpcgnn.nn.layered import LayeredModel
from hpcgnn.nn.linear import Linear, xavier_linear
from hpcgnn.nn.model import LayerView, ModelShape
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective

if TYPE_CHECKING:
    from hpcgnn.attention import AttentionOperator


class TransformerLayer(nn.Module):
    """Heads of ``softmax_j(<q_i, k_j + W_e e_ij> / sqrt D) (v_j + W_e e_ij)``, plus a map of x_i.

    Queries q, keys k and values v are maps of the rows. With a gate the result is
    ``b r + (1 - b) m`` of the attention's m and the mapped own row r, where
    ``b = sigmoid(w [m, r, m - r])``; without, their sum.

    Parameters
    ----------
    in_width
        Columns of the input.
    out_width
        Columns of the result: of all heads side by side, or of each when they are averaged.
    heads
        Number of heads H; divides `out_width` unless they are averaged.
    average
        Average the heads, as in a last layer.
    gated
        Whether there is a gate.
    num_edge_features
        Columns of an edge's features, which the pattern has; 0: none are read.
    """

    def __init__(
        self,
        in_width: int,
        out_width: int,
        *,
        heads: int,
        average: bool,
        gated: bool = False,
        num_edge_features: int = 0,
    ) -> None:
        super().__init__()
        if not average and out_width % heads:
            raise ValueError(f"{heads} heads do not divide a width of {out_width}")
        self.heads, self.average = heads, average
        self.width = out_width if average else out_width // heads
        self.queries = Linear(in_width, heads * self.width)
        # A head after the other, of each first the key and then the value.
        self.pairs = Linear(in_width, heads * 2 * self.width)
        self.own = Linear(in_width, out_width)
        self.gate = Linear(3 * out_width, 1, bias=False) if gated else None
        self.edges: Linear | None = None
        if num_edge_features:
            self.edges = xavier_linear(num_edge_features, heads * self.width)

    @collective
    def forward(self, view: LayerView, x: Tensor, draw: EdgeDraw | None = None) -> Tensor:
        """Return (output rows, out_width) for `x` (input rows, in_width).

        Parameters
        ----------
        view
            With the pattern of edges.
        x
            Input rows.
        draw
            Edges and weights that this step leaves out.
        """
        operator = cast("AttentionOperator", view.operators[Aggregation.ATTENTION_IN])
        mine = view.own(x)
        own: Tensor = self.own(mine)
        queries = widened(self.queries(mine)) * self.width**-0.5
        pairs, rows = self.pairs(x), x.detach()
        weights = queries.new_empty(self.heads, 0)
        if self.edges is not None:
            weights = self.edges.weight.view(self.heads, -1)
        with rematerialised(pairs, lambda: self.pairs(rows)):
            found, _ = attend_products(pairs, queries, weights, ProductHeads(operator, draw))
        if self.average:
            found = found.view(len(found), self.heads, self.width).mean(dim=1)
        found = found.to(own.dtype)
        if self.gate is None:
            return found + own
        share = torch.sigmoid(self.gate(torch.cat([found, own, found - own], dim=1)))
        return share * own + (1 - share) * found


class Transformer(LayeredModel):
    """Layers of any depth; hidden layers concatenate their heads, the last one averages them.

    `hidden` is the width of all heads together.
    """

    aggregations = (Aggregation.ATTENTION_IN,)
    options = LayeredModel.options | {
        "heads", "attention_dropout", "edge_dropout", "edge_features"
    }  # fmt: skip
    own_options = MappingProxyType({"gate": False})
    maps_own_rows = True
    layers_save_results = True
    runs_on_gpus = False

    @classmethod
    def check(cls, shape: ModelShape) -> None:
        """Raise an `InputError` when heads do not divide the width of hidden layers."""
        if shape.num_hidden_layers and shape.hidden % shape.heads:
            raise InputError(
                f"model.heads = {shape.heads}: they do not divide model.hidden = {shape.hidden}"
            )

    def make_layer(self, place: int, in_width: int, out_width: int) -> TransformerLayer:
        """Return the layer at `place`."""
        shape = self.shape
        return TransformerLayer(
            in_width,
            out_width,
            heads=shape.heads,
            average=place >= shape.num_hidden_layers,
            gated=shape.own.get("gate", False),
            num_edge_features=shape.num_edge_features,
        )

    @collective
    def run_layer(self, place: int, view: LayerView, x: Tensor, draw: DropoutKey | None) -> Tensor:
        """Return the output rows of a layer, with this draw's edges left out."""
        shape = self.shape
        left_out = edge_draw(draw, shape.attention_dropout, shape.edge_dropout)
        out: Tensor = self.layers[place](view, x, left_out)
        return out
