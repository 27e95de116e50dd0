"""Graph attention network (Velickovic et al., ICLR 2018)."""

from typing import cast

import torch
from torch import Tensor, nn

from hpcgnn.autograd import DropoutKey, attend_additive, edge_draw
from hpcgnn.nn.layered import LayeredModel, xavier_linear
from hpcgnn.nn.model import Aggregations, LayerView
from hpcgnn.sparse import AttentionOperator, EdgeDraw

__all__ = ["GAT", "GATLayer"]


class GATLayer(nn.Module):
    """Multi-head attention over in-edges and the node itself, plus a bias.

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
    slope
        Of the leaky rectifier of the scores.
    """

    def __init__(
        self, in_width: int, out_width: int, *, heads: int, average: bool, slope: float = 0.2
    ) -> None:
        super().__init__()
        if not average and out_width % heads:
            raise ValueError(f"{heads} heads do not divide a width of {out_width}")
        self.heads, self.average, self.slope = heads, average, slope
        width = out_width if average else out_width // heads
        self.linear = xavier_linear(in_width, heads * width)
        self.source = nn.Parameter(self.linear.weight.new_empty(heads, width))
        self.target = nn.Parameter(self.linear.weight.new_empty(heads, width))
        self.bias = nn.Parameter(self.linear.weight.new_zeros(out_width))
        nn.init.xavier_uniform_(self.source)
        nn.init.xavier_uniform_(self.target)

    def forward(self, view: LayerView, x: Tensor, draw: EdgeDraw | None = None) -> Tensor:
        """Return (output rows, out_width) for `x` (input rows, in_width).

        Collective.

        Parameters
        ----------
        view
            With the pattern of edges.
        x
            Input rows.
        draw
            Edges and weights that this step leaves out.
        """
        operator = cast("AttentionOperator", view.operators[Aggregations.ATTENTION])
        values = self.linear(x)
        by_head = view.own(values).view(-1, *self.source.shape)
        targets = torch.einsum("nhd,hd->nh", by_head, self.target)
        out = attend_additive(operator, values, targets, self.source, slope=self.slope, draw=draw)
        if self.average:
            out = out.view(-1, *self.source.shape).mean(dim=1)
        return out + self.bias


class GAT(LayeredModel):
    """GAT of any depth; hidden layers concatenate their heads, the last one averages them.

    Not collective. `hidden` is the width of all heads together.
    """

    aggregations = (Aggregations.ATTENTION,)
    options = LayeredModel.options | {"heads", "attention_dropout", "edge_dropout"}

    def make_layer(self, place: int, in_width: int, out_width: int) -> GATLayer:
        """Return the layer at `place`.

        Not collective.
        """
        average = place >= self.shape.num_hidden_layers
        return GATLayer(in_width, out_width, heads=self.shape.heads, average=average)

    def run_layer(self, place: int, view: LayerView, x: Tensor, draw: DropoutKey | None) -> Tensor:
        """Return the output rows of a layer, with this draw's edges left out.

        Collective.
        """
        shape = self.shape
        left_out = edge_draw(draw, shape.attention_dropout, shape.edge_dropout)
        out: Tensor = self.layers[place](view, x, left_out)
        return out
