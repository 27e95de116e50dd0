"""Graph attention networks: GAT (Velickovic et al., 2018) and GATv2 (Brody et al., 2022)."""

from functools import partial
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from hpcgnn.attention import AdditiveScores, AttentionOperator, DynamicScores
from hpcgnn.autograd import DropoutKey, Heads, ScoresOf, attend, edge_draw
from hpcgnn.kernels import EdgeDraw
from hpcgnn.nn.layered import LayeredModel
from hpcgnn.nn.linear import Linear, xavier_linear
from hpcgnn.nn.model import LayerView
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective


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
    num_edge_features
        Columns of an edge's features, which the pattern has; 0: scores read none.
    slope
        Of the leaky rectifier of the scores.
    """

    def __init__(
        self,
        in_width: int,
        out_width: int,
        *,
        heads: int,
        average: bool,
        num_edge_features: int = 0,
        slope: float = 0.2,
    ) -> None:
        super().__init__()
        if not average and out_width % heads:
            raise ValueError(f"{heads} heads do not divide a width of {out_width}")
        self.heads, self.average, self.slope = heads, average, slope
        width = out_width if average else out_width // heads
        self.linear = xavier_linear(in_width, heads * width)
        self.source = nn.Parameter(self.linear.weight.new_empty(heads, width))
        self.bias = nn.Parameter(self.linear.weight.new_zeros(out_width))
        nn.init.xavier_uniform_(self.source)
        self.make_target(in_width, heads, width)
        self.edges: Linear | None = None
        if num_edge_features:
            self.edges = xavier_linear(num_edge_features, heads * width)
            self.make_edge(heads, width)

    def make_edge(self, heads: int, width: int) -> None:
        """Make the parameters of the edges' share of the scores, beside the map of features."""
        self.edge = nn.Parameter(self.linear.weight.new_empty(heads, width))
        nn.init.xavier_uniform_(self.edge)

    def edge_weights(self, by_head: Tensor) -> Tensor:
        """Return what the scores multiply features of edges with, (H, any).

        Parameters
        ----------
        by_head
            (H, D, F) the map of the features.
        """
        # <a, W e> as <Wᵀ a, e>: a number for each edge and head, and no row.
        return torch.einsum("hdf,hd->hf", by_head, self.edge)

    def make_target(self, in_width: int, heads: int, width: int) -> None:
        """Make the parameters of the rows' share of the scores."""
        del in_width
        self.target = nn.Parameter(self.linear.weight.new_empty(heads, width))
        nn.init.xavier_uniform_(self.target)

    def scores(self) -> ScoresOf:
        """Return what makes the scores of the edges."""
        return partial(AdditiveScores, slope=self.slope, width=self.source.shape[1])

    def target_map(self) -> Tensor:
        """Return the map from rows to their share of the scores, (H, in_width)."""
        # <t, W x> as <Wᵀ t, x>: reads the narrow input, not the values of all heads.
        by_head = self.linear.weight.view(*self.target.shape, -1)
        return torch.einsum("hdf,hd->hf", by_head, self.target)

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
        operator = cast("AttentionOperator", view.operators[Aggregation.ATTENTION])
        heads = Heads(operator, self.scores(), average=self.average, draw=draw)
        weights: Tensor = self.source
        if self.edges is not None:
            by_head = self.edges.weight.view(*self.source.shape, -1)
            weights = torch.cat([weights, self.edge_weights(by_head)], dim=1)
        return attend(
            x,
            self.linear.weight,
            view.own(x),
            self.target_map(),
            weights,
            self.bias,
            heads,
        )


class GATv2Layer(GATLayer):
    """The same with scores that see the sum of both nodes' maps; parameters as of `GATLayer`."""

    def make_target(self, in_width: int, heads: int, width: int) -> None:
        """Make the rows' own linear map."""
        self.own = xavier_linear(in_width, heads * width)

    def make_edge(self, heads: int, width: int) -> None:
        """Make nothing: the map of features is all."""

    def edge_weights(self, by_head: Tensor) -> Tensor:
        """Return the map of the features, (H, D * F): its result is inside of the rectifier."""
        return by_head.flatten(1)

    def scores(self) -> ScoresOf:
        """Return what makes the scores of the edges."""
        return partial(DynamicScores, slope=self.slope, width=self.source.shape[1])

    def target_map(self) -> Tensor:
        """Return the map from rows to their share of the scores, (H * D, in_width)."""
        return self.own.weight


class GAT(LayeredModel):
    """GAT of any depth; hidden layers concatenate their heads, the last one averages them.

    `hidden` is the width of all heads together.
    """

    aggregations = (Aggregation.ATTENTION,)
    options = LayeredModel.options | {
        "heads", "attention_dropout", "edge_dropout", "edge_features"
    }  # fmt: skip
    layers_save_results = True
    layer_type: ClassVar[type[GATLayer]] = GATLayer

    def make_layer(self, place: int, in_width: int, out_width: int) -> GATLayer:
        """Return the layer at `place`."""
        average = place >= self.shape.num_hidden_layers
        return self.layer_type(
            in_width,
            out_width,
            heads=self.shape.heads,
            average=average,
            num_edge_features=self.shape.num_edge_features,
        )

    @collective
    def run_layer(self, place: int, view: LayerView, x: Tensor, draw: DropoutKey | None) -> Tensor:
        """Return the output rows of a layer, with this draw's edges left out."""
        shape = self.shape
        left_out = edge_draw(draw, shape.attention_dropout, shape.edge_dropout)
        out: Tensor = self.layers[place](view, x, left_out)
        return out


class GATv2(GAT):
    """GATv2 of any depth; sizes as of `GAT`."""

    layer_type = GATv2Layer
