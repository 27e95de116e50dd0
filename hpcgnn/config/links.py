"""The section of the configuration on link prediction."""

from dataclasses import dataclass

from hpcgnn.config.options import (
    Chance,
    Count,
    Natural,
    OpenShare,
    Positive,
    check_values,
    option,
    require,
)
from hpcgnn.nn import LINK_LOSSES, SCORERS
from hpcgnn.support import Trait, lacks, needs

NEGATIVES = ("uniform", "degree", "relation", "batch")
"""Names of the ways to draw the wrong ends of edges."""

RANKINGS = ("drawn", "all")
"""Names of what a tested edge is ranked against."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinksConfig:
    """Which edges are predicted, from what, and against what."""

    relations: tuple[str, ...] = option(
        (), "relations whose edges are predicted; empty: those of graph.relations"
    )
    stored: bool = option(
        True, "where the store has a split of edges: valid and test edges are those of it"
    )
    train: OpenShare = option(0.2, "share of their edges that is trained on, in (0, 1)")
    valid: Chance = option(0.05, "share of their edges that chooses the model, in [0, 1)")
    test: Chance = option(0.1, "share of their edges that is tested on, in [0, 1)")
    sampled: bool = option(
        False,
        "train on sampled subgraphs, as [sampling] says: batches of edges with sampler=neighbour, "
        "else the edges within a subgraph; judged on the whole graph",
    )
    split_seed: Natural = option(1, "draws the shares, and what edges are ranked against")
    width: Natural = option(0, "columns of a node's embedding; 0: model.hidden")
    scorer: str = option(
        "dot", f"of the embeddings of two nodes: {', '.join(SCORERS)}", values=tuple(SCORERS)
    )
    loss: str = option(
        "logistic", f"of the scores: {', '.join(LINK_LOSSES)}", values=tuple(LINK_LOSSES)
    )
    margin: Positive = option(1.0, "by which an edge shall exceed a wrong one; with loss=margin")
    negatives: str = option(
        "uniform",
        "wrong ends of edges, new in each epoch: uniform over the nodes; by degree, the targets of "
        "other edges; by relation, the nodes that are targets of it; batch, the targets of the "
        "other edges of a batch of num_negatives + 1",
        values=NEGATIVES,
        traits=needs(Trait.OTHER_ENDS),
    )
    num_negatives: Count = option(4, "wrong ends for each edge in an epoch")
    ranking: str = option(
        "drawn",
        "what tested edges are ranked against: drawn wrong ends, or all nodes",
        values=RANKINGS,
        traits=lacks({Trait.PLANNED: "its evaluation is not counted"}),
    )
    ranked: Count = option(100, "wrong ends of a tested edge, always the same")

    def __post_init__(self) -> None:
        check_values("links", self)
        total = self.train + self.valid + self.test
        require(
            total < 1, "links.train + links.valid + links.test", round(total, 9), "must be below 1"
        )
