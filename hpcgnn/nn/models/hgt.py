"""HGT: heterogeneous graph transformer (Hu, Dong, Wang and Sun, WWW 2020).

A node's softmax is over its in-edges of all relations. The maps of keys and of messages by relation
are linear, so they are applied to a row's query and to its mean of each relation. So ghosts are
fetched once for all relations, and no rows of edges are computed.
"""

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import (
    DropoutKey,
    ProductHeads,
    arithmetic,
    attend_products,
    rematerialised,
    widened,
)
from hpcgnn.kernels import EdgeDraw
from hpcgnn.nn.equal_width import EqualWidthModel
from hpcgnn.nn.heads import require_heads
from hpcgnn.nn.linear import TypedLinear
from hpcgnn.nn.model import LayerView, ModelShape
from hpcgnn.nn.norm import hold_shifts
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective
from hpcgnn.support import Trait

if TYPE_CHECKING:
    from hpcgnn.attention import AttentionOperator


class HGTLayer(nn.Module):
    """``s out(gelu(m)) + (1 - s) x`` with the attention's m, and a learned share s for each type.

    For each head, the logit of an edge of relation r is ``p_r <q_i, k_j A_r> / sqrt D`` and its
    message ``v_j M_r``. The H heads have equal shares of the width, side by side.
    """

    def __init__(self, width: int, *, heads: int, num_relations: int, num_types: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries = TypedLinear(width, width, num_types)
        # For each head the key, then the value.
        self.pairs = TypedLinear(width, 2 * width, num_types)
        self.out = TypedLinear(width, width, num_types)
        shape = num_relations, heads, width // heads, width // heads
        self.keys = nn.Parameter(torch.empty(shape))
        self.messages = nn.Parameter(torch.empty(shape))
        for weight in (*self.keys.data.flatten(0, 1), *self.messages.data.flatten(0, 1)):
            nn.init.xavier_uniform_(weight)
        self.priors = nn.Parameter(torch.ones(num_relations, heads))
        self.skip = nn.Parameter(torch.ones(num_types))

    @collective
    def forward(self, view: LayerView, x: Tensor, draw: EdgeDraw | None = None) -> Tensor:
        """Return (output rows, width) for `x` (input rows, width), over all relations."""
        operator = cast("AttentionOperator", view.operators[Aggregation.ATTENTION_BY_RELATION])
        own, types, all_types = view.own(x), view.own_traits.types, view.traits.types
        queries = widened(self.queries(own, types)).view(len(own), *self.keys.shape[1:3])
        rows_of = [torch.from_numpy(rows.astype(np.int64)) for rows in view.relation_rows]
        targets = torch.cat(self._targets(queries, rows_of))
        pairs, rows = self.pairs(x, all_types), x.detach()
        with rematerialised((pairs, lambda: self.pairs(rows, all_types))):
            means, lse = attend_products(
                pairs, targets.flatten(1), targets.new_empty(self.heads, 0),
                ProductHeads(operator, draw),
            )  # fmt: skip
        joined = self._join(means.view_as(targets), lse, rows_of, len(own))
        out: Tensor = self.out(arithmetic().gelu(joined.flatten(1)).to(x.dtype), types)
        share = torch.sigmoid(self.skip)
        if types is None:
            share = arithmetic().for_rows(share[:1], len(own))
        else:
            share = arithmetic().rows_of(share[:, None], types)
        return (share * out + (1 - share) * own).to(x.dtype)

    def _targets(self, queries: Tensor, rows_of: list[Tensor]) -> list[Tensor]:
        """Return for each relation the mapped queries (rows, H, D) to multiply with keys."""
        maps = self.keys * (self.priors[:, :, None, None] / math.sqrt(queries.shape[2]))
        return [
            arithmetic().linear_by_head(queries[rows], matrix)
            for rows, matrix in zip(rows_of, maps, strict=True)
        ]

    def _join(self, means: Tensor, lse: Tensor, rows_of: list[Tensor], num_rows: int) -> Tensor:
        """Return (num_rows, H, D) the mean messages over the edges of all relations.

        `means` (rows of all relations, H, D) are mean values; `lse` (rows, H) are their log
        weights, the log-sum-exp of logits. `rows_of` has the output rows of each relation.
        """
        rows = torch.cat(rows_of)
        top = lse.new_full((num_rows, self.heads), -torch.inf)
        top = top.scatter_reduce(0, rows[:, None].expand_as(lse), lse.detach(), "amax")
        # With a finite top, rows without edges get weight zero.
        top = torch.where(torch.isneginf(top), 0.0, top)
        shares = torch.exp(lse - top[rows])
        total = torch.zeros_like(top).index_add(0, rows, shares)
        parts = torch.split(means * shares[:, :, None], [len(rows) for rows in rows_of])
        mapped = [
            arithmetic().linear_by_head(part, matrix.transpose(1, 2))
            for part, matrix in zip(parts, self.messages, strict=True)
        ]
        joined = means.new_zeros(num_rows, *means.shape[1:]).index_add(0, rows, torch.cat(mapped))
        return joined / torch.where(total == 0, 1.0, total)[:, :, None]


class HGT(EqualWidthModel):
    """HGT layers between a map of the features and a map to the classes.

    Reverses of directed relations count as relations.
    """

    aggregations = (Aggregation.ATTENTION_BY_RELATION,)
    lacks = MappingProxyType(
        {
            Trait.GPU: "it has no kernels for a GPU",
        }
    )
    options = EqualWidthModel.options | {"heads", "attention_dropout", "edge_dropout"}
    activates_layers = False
    takes_sparse = True

    def __init__(self, shape: ModelShape, *, directed: bool) -> None:
        super().__init__(shape, directed=directed)
        if len(shape.type_features) < 2:
            for layer, norm in zip(self.layers, self.norms, strict=False):
                hold_shifts(norm, layer.get_parameter("out.maps.0.bias"))

    @classmethod
    @override
    def check(cls, shape: ModelShape) -> None:
        require_heads(shape)

    @override
    def make_layer(self, index: int) -> HGTLayer:
        shape = self.shape
        return HGTLayer(
            shape.hidden,
            heads=shape.heads,
            num_relations=shape.num_relations,
            num_types=max(len(shape.type_features), 1),
        )

    @collective
    @override
    def run_layer(
        self, index: int, view: LayerView, x: Tensor, carried: None, draw: DropoutKey | None
    ) -> tuple[Tensor, None]:
        return self.layers[index](view, x, self.edges_left_out(draw)), None
