"""SIGN: scalable inception graph networks (Frasca et al., 2020), products of features, then maps.

``[X W_0 | M X W_1 | M² X W_2 ...]``, with powers of the mean over neighbours for each direction of
the graph, is the input of a perceptron. No product depends on weights, so if the products of
features are kept, epochs exchange no rows.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import ACTIVATIONS, DropoutKey, dropout, widened
from hpcgnn.errors import InputError
from hpcgnn.nn.linear import Linear
from hpcgnn.nn.map_then_aggregate import powers_of
from hpcgnn.nn.model import GraphView, HiddenModel, ModelShape
from hpcgnn.nn.norm import hold_shifts, make_norm
from hpcgnn.operator import Aggregation, on_graph
from hpcgnn.spmd import collective
from hpcgnn.support import NOTHING


class SIGN(HiddenModel):
    """SIGN with the powers 0 to ``hops`` (default 3) of every direction.

    The first of ``num_layers`` maps consists of one map of width ``hidden`` for each power.
    """

    aggregations = (Aggregation.MEAN_IN, Aggregation.MEAN_OUT)
    lacks = NOTHING
    default_hops = 3
    propagates_once = True
    takes_sparse = True
    options = frozenset({"norm", "activation", "hops"})

    def __init__(self, shape: ModelShape, *, directed: bool) -> None:
        super().__init__(shape, directed=directed)
        self.kinds = on_graph(self.aggregations, directed=directed)
        branches = 1 + len(self.kinds) * self.num_aggregations(shape)
        self.branches = nn.ModuleList(
            Linear(shape.first_width, shape.hidden) for _ in range(branches)
        )
        inner = [shape.hidden] * (shape.num_layers - 2)
        widths = [branches * shape.hidden, *inner, shape.num_classes]
        self.layers = nn.ModuleList(Linear(*pair) for pair in pairwise(widths))
        norms = [make_norm(shape.norm, width) for width in widths[:-1]]
        self.norms = nn.ModuleList(norm for norm in norms if norm is not None)
        for branch in self.branches:
            hold_shifts(norms[0], branch.get_parameter("bias"))
        for layer, norm in zip(self.layers, norms[1:], strict=False):
            hold_shifts(norm, layer.get_parameter("bias"))

    @classmethod
    @override
    def num_feature_products(cls, shape: ModelShape) -> int:
        # Only unchanged features are aggregated.
        return cls.num_aggregations(shape)

    @classmethod
    @override
    def check(cls, shape: ModelShape) -> None:
        if shape.num_layers < 2:
            raise InputError(
                f"model.num_layers = {shape.num_layers}: sign has a map for each power and one of "
                "all of them; use at least 2"
            )

    @collective
    @override
    def forward(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> Tensor:
        hidden = self.last_input(graph, x_NF, key)
        return widened(self.layers[-1](hidden))

    @collective
    @override
    def last_input(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> Tensor:
        view = graph.layer(0, self.num_aggregations(self.shape))
        draw = None if key is None else key.at(0)
        x_NF = dropout(x_NF, view.node_ids, draw, self.shape.input_dropout)
        first, *others = self.branches
        mapped = [first(view.own(x_NF))]
        for number, kind in enumerate(self.kinds):
            start = number * len(view.steps)
            mapped += powers_of(view, kind, x_NF, others[start : start + len(view.steps)])
        h_NH = torch.cat(mapped, dim=1)
        for index in range(len(self.layers)):
            if index > 0:
                h_NH = self.layers[index - 1](h_NH)
            if len(self.norms):
                h_NH = self.norms[index](h_NH, view.sums, training=key is not None)
            h_NH = ACTIVATIONS[self.shape.activation].whole(h_NH)
            draw = None if key is None else key.at(index + 1)
            h_NH = dropout(h_NH, view.output_ids, draw, self.shape.dropout)
        return h_NH
