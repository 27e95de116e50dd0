"""Graph attention networks: GAT (Velickovic et al., 2018) and GATv2 (Brody et al., 2022)."""

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.attention import AdditiveScores, AttentionOperator, DynamicScores
from hpcgnn.autograd import Heads, ScoresOf, attend
from hpcgnn.kernels import EdgeDraw
from hpcgnn.nn.heads import HeadsLayer, HeadsModel
from hpcgnn.nn.linear import xavier_linear
from hpcgnn.nn.model import LayerView
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective
from hpcgnn.support import NOTHING


class GATLayer(HeadsLayer):
    """Multi-head attention over in-edges and the node itself, plus a bias; see `HeadsLayer`."""

    def __init__(
        self, in_width: int, out_width: int, *, heads: int, slope: float = 0.2, **how: Any
    ) -> None:
        super().__init__(out_width, heads=heads, **how)
        self.slope, width = slope, self.width
        self.linear = xavier_linear(in_width, heads * width)
        self.source = nn.Parameter(self.linear.weight.new_empty(heads, width))
        self.bias = nn.Parameter(self.linear.weight.new_zeros(out_width))
        nn.init.xavier_uniform_(self.source)
        self.make_target(in_width, heads, width)
        if self.edges is not None:
            self.make_edge(heads, width)

    def make_edge(self, heads: int, width: int) -> None:
        """Make the parameters of the edges' share of the scores, beside the map of features."""
        self.edge = nn.Parameter(self.linear.weight.new_empty(heads, width))
        nn.init.xavier_uniform_(self.edge)

    def edge_weights(self, by_head: Tensor) -> Tensor:
        """Return the weights of edge features in scores, (H, any), from their map (H, D, F)."""
        # <a, W e> as <Wᵀ a, e>: one number for each edge and head instead of a row.
        return torch.einsum("hdf,hd->hf", by_head, self.edge)

    def make_target(self, in_width: int, heads: int, width: int) -> None:
        """Make the parameters of the rows' share of the scores."""
        self.target = nn.Parameter(self.linear.weight.new_empty(heads, width))
        nn.init.xavier_uniform_(self.target)

    def scores(self) -> ScoresOf:
        """Return the function that makes the scores of the edges."""
        return partial(AdditiveScores, slope=self.slope, width=self.source.shape[1])

    def target_map(self) -> Tensor:
        """Return the map from rows to their share of the scores, (H, in_width)."""
        # <t, W x> as <Wᵀ t, x>: reads the narrow input, not the values of all heads.
        by_head = self.linear.weight.view(*self.target.shape, -1)
        return torch.einsum("hdf,hd->hf", by_head, self.target)

    @collective
    def forward(self, view: LayerView, x: Tensor, draw: EdgeDraw | None = None) -> Tensor:
        """Return (output rows, out_width) for `x` (input rows, in_width)."""
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
    """GAT with scores that depend on the sum of both nodes' maps; parameters as in `GATLayer`."""

    @override
    def make_target(self, in_width: int, heads: int, width: int) -> None:
        self.own = xavier_linear(in_width, heads * width)

    def make_edge(self, heads: int, width: int) -> None:
        """Make nothing: only the map of features is needed."""

    @override
    def edge_weights(self, by_head: Tensor) -> Tensor:
        # The map of the features, (H, D * F): its result is an argument of the rectifier.
        return by_head.flatten(1)

    @override
    def scores(self) -> ScoresOf:
        return partial(DynamicScores, slope=self.slope, width=self.source.shape[1])

    @override
    def target_map(self) -> Tensor:
        return self.own.weight


class GAT(HeadsModel):
    """GAT of any depth, with sizes as in `HeadsModel`."""

    aggregations = (Aggregation.ATTENTION,)
    takes_sparse = True
    shift = "bias"
    lacks = NOTHING

    @override
    def heads_layer(self, in_width: int, out_width: int, **how: Any) -> GATLayer:
        return GATLayer(in_width, out_width, **how)


class GATv2(GAT):
    """GATv2 of any depth, with sizes as in `HeadsModel`."""

    lacks = NOTHING

    @override
    def heads_layer(self, in_width: int, out_width: int, **how: Any) -> GATLayer:
        return GATv2Layer(in_width, out_width, **how)
