"""R-GAT as in MLPerf: the sum of a GAT layer for each relation."""

from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import RelationHeads, arithmetic, attend_relations
from hpcgnn.kernels import EdgeDraw
from hpcgnn.nn.heads import HeadsLayer, HeadsModel
from hpcgnn.nn.map_then_aggregate import mapped_first
from hpcgnn.nn.model import LayerView
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective
from hpcgnn.support import Trait


class RGATLayer(HeadsLayer):
    """``Σ_r GAT_r(X) + b``, each with its own W_r, a_r and t_r; a node's own row is not read."""

    def __init__(self, in_width: int, out_width: int, num_relations: int, **how: Any) -> None:
        super().__init__(out_width, **how)
        shape = self.heads, num_relations, self.width
        self.maps = nn.Parameter(torch.empty(*shape, in_width))
        self.source, self.target = (nn.Parameter(torch.empty(shape)) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(out_width))
        for weight in (self.maps, self.source, self.target):
            for part in weight.data.unbind(1):
                part.copy_(nn.init.xavier_uniform_(part.flatten(0, -2).clone()).view_as(part))
        # Scale, so that the sum of all relations is initially as large as a single one.
        self.maps.data *= num_relations**-0.5

    @collective
    def forward(self, view: LayerView, x: Tensor, draw: EdgeDraw | None = None) -> Tensor:
        """Return (output rows, out_width) for `x` (input rows, in_width), over all relations."""
        operator: Any = view.operators[Aggregation.ATTENTION_MAPPED]
        heads = RelationHeads(operator, view.relation_rows, 0.2, draw)
        x, maps = mapped_first(x, self.maps.flatten(0, 1).transpose(1, 2))
        maps = maps.transpose(1, 2).reshape(*self.maps.shape[:3], -1)
        sums = attend_relations(x, view.own(x), maps, (self.source, self.target), heads)
        bias = arithmetic().for_rows(self.bias, len(sums))
        return ((sums.mean(dim=1) if self.average else sums.flatten(1)) + bias).to(x.dtype)


class RGAT(HeadsModel):
    """R-GAT of any depth; reverses of directed relations count as relations."""

    aggregations = (Aggregation.ATTENTION_MAPPED,)
    options = HeadsModel.options - {"edge_features"}
    lacks = MappingProxyType(
        {
            Trait.GPU: "its maps of relations run on CPUs only",
            Trait.INTEGER_PRODUCTS: "its maps of relations are applied as rows are read",
            Trait.PUSHES: "only the owner of a row knows its relation",
        }
    )
    takes_sparse = True
    shift = "bias"

    @override
    def heads_layer(self, in_width: int, out_width: int, **how: Any) -> RGATLayer:
        return RGATLayer(in_width, out_width, self.shape.num_relations, **how)
