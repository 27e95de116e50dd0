"""Predict classes or numbers of edges from the embeddings of their ends and their features.

Shape suffixes: R rows of nodes, E edges, H width of the embeddings, F features of an edge.
"""

import torch
from torch import Tensor, nn

from hpcgnn.autograd import RequestedRows, arithmetic, relu
from hpcgnn.nn.edge_linear import EdgeLinear
from hpcgnn.nn.linear import Linear
from hpcgnn.nn.model import EmbeddingModel, NodeModel
from hpcgnn.spmd import collective
from hpcgnn.typing import LocalIndices


class EdgeDecoder(nn.Module):
    """``V relu(W [h_target, h_source, e] + b_r) + c`` for an edge with relation r.

    If edges are undirected (`symmetric`), the hidden layer is the mean over both orders of the
    ends. `width` is H; `num_features` is F, or 0; `hidden` is the width between the two maps;
    `outputs` is the number of classes or targets. Each of `num_relations` has its own b.
    """

    def __init__(
        self,
        width: int,
        num_features: int,
        hidden: int,
        outputs: int,
        num_relations: int,
        *,
        symmetric: bool,
    ) -> None:
        super().__init__()
        self.first = EdgeLinear(width, width, num_features, hidden)
        self.relations = nn.Parameter(torch.zeros(num_relations - 1, hidden))
        self.output = Linear(hidden, outputs)
        self.symmetric = symmetric

    def ends(self, rows_RH: RequestedRows) -> tuple[RequestedRows, RequestedRows]:
        """Return the targets' and the sources' parts of the first map, (R, hidden) each."""
        return rows_RH.mapped(self.first.of_targets), rows_RH.mapped(self.first.map_sources)

    @collective
    def forward(
        self,
        ends: tuple[RequestedRows, RequestedRows],
        positions: tuple[LocalIndices, LocalIndices],
        relations_E: Tensor,
        features_EF: Tensor | None,
    ) -> Tensor:
        """Return (E, outputs) for edges whose sources and targets are at `positions` of the rows.

        `ends` is the result of `ends` for the rows; `relations_E` are integers.
        """
        sources, targets = positions
        of_relation: Tensor | float = 0.0
        if len(self.relations):
            # The first relation's bias is that of the map.
            none = self.relations.new_zeros(1, self.relations.shape[1])
            of_relation = arithmetic().rows_of(torch.cat([none, self.relations]), relations_E)
        orders = (targets, sources), (sources, targets)
        count = 1 + self.symmetric
        by_end = (end.at(*order[:count]) for end, order in zip(ends, orders, strict=True))
        pairs = zip(*by_end, strict=True)
        hidden = [relu(self.first(*pair, features_EF) + of_relation) for pair in pairs]
        return self.output((hidden[0] + hidden[1]) / 2 if self.symmetric else hidden[0])


class EdgeModel(EmbeddingModel):
    """An encoder, whose logits are the nodes' embeddings, and a decoder for edges."""

    head = "decoder"
    decoder: EdgeDecoder


def make_edge_model(
    encoder: NodeModel, sizes: tuple[int, ...], *, symmetric: bool, seed: int
) -> EdgeModel:
    """Return the model, equal on all ranks for equal arguments.

    `sizes` are the positional arguments of `EdgeDecoder`, whose weights are drawn from `seed`;
    torch's global generator is not changed.
    """
    return EdgeModel.with_new_head(encoder, seed, lambda: EdgeDecoder(*sizes, symmetric=symmetric))
