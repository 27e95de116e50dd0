"""Link prediction: scores of pairs of nodes from their embeddings.

Shape suffixes: E edges, B candidates for an end, H width of the embeddings.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from hpcgnn import kernels
from hpcgnn.autograd import RequestedRows, arithmetic, memory_of, pair_products
from hpcgnn.errors import InputError
from hpcgnn.nn.linear import Linear
from hpcgnn.nn.model import EmbeddingModel, NodeModel
from hpcgnn.spmd import collective
from hpcgnn.typing import LocalIndices


class Scorer(nn.Module, ABC):
    """Scores pairs of embeddings."""

    @abstractmethod
    def forward(self, source: Tensor, target: Tensor, relation: Tensor) -> Tensor:
        """Return the scores (...,) of pairs of rows (..., H).

        `relation` are the edges' relations, integers of a shape that broadcasts with (...,).
        """

    @collective
    def of_requested(
        self, rows: RequestedRows, sources: LocalIndices, ends: LocalIndices, relation: Tensor
    ) -> Tensor:
        """Return the scores (E, K) of sources (E,) with several ends (E, K), positions in `rows`.

        `relation` (E,) are integers.
        """
        source_EH, end_rows = rows.at(sources, ends.reshape(-1))
        scores: Tensor = self(
            source_EH[:, None], end_rows.view(*ends.shape, source_EH.shape[1]), relation[:, None]
        )
        return scores

    @abstractmethod
    def against(self, source_EH: Tensor, relation_E: Tensor, target_BH: Tensor) -> Tensor:
        """Return the scores (E, B) of each source, with its relation, against every target."""


class _Bilinear(Scorer):
    """A scorer that is linear in the target: ``q(s, r) · d``."""

    @abstractmethod
    def query(self, source: Tensor, relation: Tensor) -> Tensor:
        """Return q (..., H) of sources (..., H) and relations (...,)."""

    @override
    def forward(self, source: Tensor, target: Tensor, relation: Tensor) -> Tensor:
        return (self.query(source, relation) * target).sum(dim=-1)

    @collective
    @override
    def of_requested(
        self, rows: RequestedRows, sources: LocalIndices, ends: LocalIndices, relation: Tensor
    ) -> Tensor:
        # Fetched by each read, for exact sums of gradients: see `RequestedRows`.
        if rows.request is not None or memory_of(rows.x).kernels is not kernels:
            return super().of_requested(rows, sources, ends, relation)
        (source_EH,) = rows.at(sources)
        return pair_products(self.query(source_EH, relation), rows.x, ends)

    @override
    def against(self, source_EH: Tensor, relation_E: Tensor, target_BH: Tensor) -> Tensor:
        return arithmetic().matmul(self.query(source_EH, relation_E), target_BH.T)


class Dot(_Bilinear):
    """``s · d / √H``, so that the scale of initial scores does not depend on the width."""

    def __init__(self, width: int, num_relations: int) -> None:
        super().__init__()
        self._scale = 1 / math.sqrt(width)

    @override
    def query(self, source: Tensor, relation: Tensor) -> Tensor:
        return source * self._scale


class DistMult(_Bilinear):
    """``Σ_h s_h w_rh d_h`` (Yang et al., ICLR 2015); w starts at 1/√H, where it is `Dot`."""

    def __init__(self, width: int, num_relations: int) -> None:
        super().__init__()
        self.relations = nn.Parameter(torch.full((num_relations, width), width**-0.5))

    @override
    def query(self, source: Tensor, relation: Tensor) -> Tensor:
        return source * arithmetic().rows_of(self.relations, relation)


class ComplEx(_Bilinear):
    """``Re Σ_h s_h w_rh conj(d_h)`` (Trouillon et al., ICML 2016), which depends on direction.

    The first half of the columns are real parts, the second half imaginary parts.
    """

    def __init__(self, width: int, num_relations: int) -> None:
        super().__init__()
        if width % 2:
            raise InputError(f"links.scorer = 'complex' needs an even links.width, not {width}")
        self.relations = nn.Parameter(torch.empty(num_relations, width))
        nn.init.xavier_normal_(self.relations)

    @override
    def query(self, source: Tensor, relation: Tensor) -> Tensor:
        weights = arithmetic().rows_of(self.relations, relation)
        (a, b), (p, q) = source.chunk(2, dim=-1), weights.chunk(2, dim=-1)
        return torch.cat([a * p - b * q, a * q + b * p], dim=-1)


_PAIRS_AT_A_TIME = 1 << 14


class MLP(Scorer):
    """A perceptron with one hidden layer, applied to ``s ⊙ w_r ⊙ d``."""

    def __init__(self, width: int, num_relations: int) -> None:
        super().__init__()
        self.relations = nn.Parameter(torch.ones(num_relations, width))
        self.hidden, self.output = Linear(width, width), Linear(width, 1)

    @override
    def forward(self, source: Tensor, target: Tensor, relation: Tensor) -> Tensor:
        joined = source * arithmetic().rows_of(self.relations, relation) * target
        hidden = functional.relu(self.hidden(joined.flatten(0, -2)))
        scores: Tensor = self.output(hidden)
        return scores.view(joined.shape[:-1])

    @override
    def against(self, source_EH: Tensor, relation_E: Tensor, target_BH: Tensor) -> Tensor:
        scores = source_EH.new_empty(len(source_EH), len(target_BH))
        step = max(1, _PAIRS_AT_A_TIME // max(1, len(target_BH)))
        for start in range(0, len(source_EH), step):
            chunk = slice(start, start + step)
            scores[chunk] = self(source_EH[chunk, None], target_BH, relation_E[chunk, None])
        return scores


SCORERS: Mapping[str, Callable[[int, int], Scorer]] = {
    "dot": Dot,
    "distmult": DistMult,
    "complex": ComplEx,
    "mlp": MLP,
}
"""Names -> functions that make a scorer, given a width and a number of relations."""


class LinkModel(EmbeddingModel):
    """An encoder, whose logits are the nodes' embeddings, and a scorer of their pairs."""

    head = "scorer"
    scorer: Scorer


def make_link_model(
    encoder: NodeModel, scorer: str, *, width: int, num_relations: int, seed: int
) -> LinkModel:
    """Return the model, equal on all ranks for equal arguments; `scorer` is a name in `SCORERS`.

    The scorer's weights are drawn from `seed`; torch's global generator is not changed.
    """
    return LinkModel.with_new_head(encoder, seed, lambda: SCORERS[scorer](width, num_relations))
