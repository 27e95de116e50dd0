"""Graph transformer whose nodes attend to their in-neighbours (Shi et al., IJCAI 2021)."""

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import ProductHeads, arithmetic, attend_products, rematerialised, widened
from hpcgnn.kernels import EdgeDraw
from hpcgnn.nn.heads import HeadsLayer, HeadsModel
from hpcgnn.nn.linear import Linear
from hpcgnn.nn.model import LayerView
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective
from hpcgnn.support import Trait

if TYPE_CHECKING:
    from hpcgnn.attention import AttentionOperator


class TransformerLayer(HeadsLayer):
    """Heads of ``softmax_j(<q_i, k_j + W_e e_ij> / sqrt D) (v_j + W_e e_ij)``, plus a map of x_i.

    Queries q, keys k and values v are maps of the rows. Let m be the output of attention and r the
    mapped own row. The result is their sum, or ``b r + (1 - b) m`` if gated, with
    ``b = sigmoid(w [m, r, m - r])``. See `HeadsLayer`.
    """

    def __init__(
        self, in_width: int, out_width: int, *, heads: int, gated: bool = False, **how: Any
    ) -> None:
        super().__init__(out_width, heads=heads, **how)
        self.queries = Linear(in_width, heads * self.width)
        # For each head the key, then the value.
        self.pairs = Linear(in_width, heads * 2 * self.width)
        self.own = Linear(in_width, out_width)
        self.gate = Linear(3 * out_width, 1, bias=False) if gated else None

    @collective
    def forward(self, view: LayerView, x: Tensor, draw: EdgeDraw | None = None) -> Tensor:
        """Return (output rows, out_width) for `x` (input rows, in_width)."""
        operator = cast("AttentionOperator", view.operators[Aggregation.ATTENTION_IN])
        targets = view.own(x)
        own: Tensor = self.own(targets)
        queries = widened(self.queries(targets)) * self.width**-0.5
        pairs, rows = self.pairs(x), x.detach()
        weights = queries.new_empty(self.heads, 0)
        if self.edges is not None:
            weights = self.edges.weight.view(self.heads, -1)
        with rematerialised((pairs, lambda: self.pairs(rows))):
            means, _ = attend_products(pairs, queries, weights, ProductHeads(operator, draw))
        if self.average:
            means = means.view(len(means), self.heads, self.width).mean(dim=1)
        means = means.to(own.dtype)
        if self.gate is None:
            return means + own
        share = arithmetic().sigmoid(self.gate(torch.cat([means, own, means - own], dim=1)))
        return share * own + (1 - share) * means


class Transformer(HeadsModel):
    """Transformer of any depth, with sizes as in `HeadsModel`."""

    aggregations = (Aggregation.ATTENTION_IN,)
    lacks = MappingProxyType(
        {
            Trait.GPU: "it has no kernels for a GPU",
        }
    )
    own_options = MappingProxyType({"gate": False})
    takes_sparse = maps_own_rows = True
    shift = "own.bias"

    @override
    def shift_of(self, layer: nn.Module) -> nn.Parameter | None:
        # The bias of the own row is added to every output row, unless a gate reads it.
        return None if layer.gate is not None else super().shift_of(layer)

    @override
    def heads_layer(self, in_width: int, out_width: int, **how: Any) -> TransformerLayer:
        return TransformerLayer(in_width, out_width, gated=self.shape.own.get("gate", False), **how)
