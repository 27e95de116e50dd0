"""Classes and numbers of edges, from the embeddings of their ends and the edges' features.

Shape suffixes: R rows of nodes, E edges, H width of the embeddings, F features of an edge.
"""

import torch
from torch import Tensor, nn

from hpcgnn.autograd import AskedRows, arithmetic, relu
from hpcgnn.nn.edge_linear import EdgeLinear
from hpcgnn.nn.linear import Linear
from hpcgnn.nn.model import EmbeddingModel, NodeModel
from hpcgnn.spmd import collective
from hpcgnn.typing import LocalIndices


class EdgeDecoder(nn.Module):
    """``V relu(W [h_target, h_source, e] + b_r) + c``, of an edge with the relation r.

    Of an undirected edge the hidden layer is the mean of both orders of its ends. The `width` is H;
    `num_features` is F, 0 where edges have none. There are `hidden` columns between the two maps;
    `outputs` are classes or numbers. b tells `num_relations` apart. `symmetric`: edges are
    undirected.
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

    def ends(self, rows_RH: AskedRows) -> tuple[AskedRows, AskedRows]:
        """Return what edges are given of targets and of sources, (R, hidden) each."""
        return rows_RH.mapped(self.first.of_targets), rows_RH.mapped(self.first.map_sources)

    @collective
    def forward(
        self,
        ends: tuple[AskedRows, AskedRows],
        places: tuple[LocalIndices, LocalIndices],
        relations_E: Tensor,
        features_EF: Tensor | None,
    ) -> Tensor:
        """Return (E, outputs) of edges, whose sources and targets are `places` among the rows.

        `ends` are of these rows; `relations_E` are integers.
        """
        sources, targets = places
        of_relation: Tensor | float = 0.0
        if len(self.relations):
            # The first is the bias of the map.
            none = self.relations.new_zeros(1, self.relations.shape[1])
            of_relation = arithmetic().rows_of(torch.cat([none, self.relations]), relations_E)
        ways = (targets, sources), (sources, targets)
        pairs = zip(
            *(end.at(*way[: 1 + self.symmetric]) for end, way in zip(ends, ways, strict=True)),
            strict=True,
        )
        hidden = [relu(self.first(*pair, features_EF) + of_relation) for pair in pairs]
        outputs: Tensor = self.output((hidden[0] + hidden[1]) / 2 if self.symmetric else hidden[0])
        return outputs


class EdgeModel(EmbeddingModel):
    """An encoder, whose logits are the nodes' embeddings, and a decoder of edges between them."""

    head = "decoder"
    decoder: EdgeDecoder


def make_edge_model(
    encoder: NodeModel, sizes: tuple[int, ...], *, symmetric: bool, seed: int
) -> EdgeModel:
    """Return the model, equal on all ranks for equal arguments.

    The weights of the decoder, of `sizes` in the order of its parameters, are drawn of `seed`;
    torch's global generator is left as it was.
    """
    return EdgeModel.drawn(encoder, seed, lambda: EdgeDecoder(*sizes, symmetric=symmetric))
