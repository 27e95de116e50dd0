"""Relational graph convolution (Schlichtkrull et al., ESWC 2018).

A relation's neighbours are averaged, and every relation has its own weights. With bases, the
weights of relation r are ``W_r = Σ_b a_rb V_b``. Ghosts are fetched once for all relations.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import arithmetic, relation_linear
from hpcgnn.errors import InputError
from hpcgnn.nn.layered import LayeredModel
from hpcgnn.nn.linear import Linear
from hpcgnn.nn.map_then_aggregate import mapped_first
from hpcgnn.nn.model import LayerView, ModelShape
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective
from hpcgnn.support import NOTHING


class RGCNLayer(nn.Module):
    """One layer: ``X W_self + Σ_r M_r X W_r + b`` with the mean M_r over relation r's neighbours.

    Without bases every relation has a matrix of its own.
    """

    def __init__(
        self, in_width: int, out_width: int, num_relations: int, num_bases: int = 0
    ) -> None:
        super().__init__()
        self.own = Linear(in_width, out_width)
        self.matrices = nn.Parameter(torch.empty(num_bases or num_relations, in_width, out_width))
        nn.init.zeros_(self.own.bias)
        for weight in (self.own.weight, *self.matrices.data):
            nn.init.xavier_uniform_(weight)
        self.coefficients: nn.Parameter | None = None
        # The sum of all relations, of which a node may have edges, starts as large as one of them.
        share = num_relations**-0.5
        if num_bases:
            self.coefficients = nn.Parameter(torch.empty(num_relations, num_bases))
            nn.init.normal_(self.coefficients, std=share * num_bases**-0.5)
        else:
            self.matrices.data *= share

    def weights(self, matrices: Tensor) -> Tensor:
        """Return W, (num_relations, any, out_width), from the relations' matrices or bases."""
        if self.coefficients is None:
            return matrices
        return arithmetic().combine(self.coefficients, matrices)

    @collective
    def forward(self, view: LayerView, x: Tensor) -> Tensor:
        """Return (output rows, out_width) for `x` (input rows, in_width)."""
        operator = view.operators[Aggregation.MEAN_BY_RELATION]
        rows: Tensor = self.own(view.own(x))
        matrices: Tensor = self.matrices
        maps_first = self.coefficients is not None or not operator.size.chooses_columns
        if maps_first and not operator.size.is_kept:
            x, matrices = mapped_first(x, matrices)
        return relation_linear(operator, view.relation_rows, x, self.weights(matrices), rows)


class RGCN(LayeredModel):
    """R-GCN of any depth; reverses of directed relations count as relations."""

    aggregations = (Aggregation.MEAN_BY_RELATION,)
    lacks = NOTHING
    aggregates_features = takes_sparse = True
    options = LayeredModel.options | {"num_bases"}
    maps_own_rows = True
    shift = "own.bias"

    @classmethod
    @override
    def num_feature_products(cls, shape: ModelShape) -> int:
        # Features are mapped to the columns of all bases first, where those are fewer.
        return 0 if shape.num_bases else super().num_feature_products(shape)

    @classmethod
    @override
    def check(cls, shape: ModelShape) -> None:
        if shape.num_bases > shape.num_relations:
            raise InputError(
                f"model.num_bases = {shape.num_bases}: there are only {shape.num_relations} "
                "relations; lower it, or 0 gives every relation its own matrix"
            )

    @override
    def make_layer(self, index: int, in_width: int, out_width: int) -> RGCNLayer:
        return RGCNLayer(in_width, out_width, self.shape.num_relations, self.shape.num_bases)
