"""The configuration's section on link prediction."""

from dataclasses import dataclass

from hpcgnn.config.options import (
    Chance,
    Count,
    Natural,
    Part,
    Positive,
    check_values,
    option,
    require,
)
from hpcgnn.nn import LINK_LOSSES, SCORERS
from hpcgnn.support import Trait, lacks, needs

NEGATIVES = ("uniform", "degree", "relation", "batch")
"""Names of the ways to draw negatives."""

ENDS = ("target", "both")
"""The ends of an edge that are predicted."""

RANKINGS = ("drawn", "all")
"""What a test edge is ranked against."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinksConfig:
    """Which edges are predicted, and against which negatives."""

    relations: tuple[str, ...] = option(
        (), "relations whose edges are predicted; empty: those of graph.relations"
    )
    stored: bool = option(
        True, "take valid and test edges from the split of edges in the store, if it has one"
    )
    train: Part = option(0.2, "share of their edges to train on, in (0, 1]")
    valid: Chance = option(0.05, "share of their edges for validation, in [0, 1)")
    test: Chance = option(0.1, "share of their edges for testing, in [0, 1)")
    disjoint: bool = option(
        True,
        "training edges are not in the graph that the model aggregates over; false: they are, as "
        "for most published figures",
    )
    ends: str = option(
        "target",
        "ends of an edge to predict: its target, or both, each given the other; in a directed "
        "graph sources have a reversed relation",
        values=ENDS,
    )
    sampled: bool = option(
        False,
        "train on sampled subgraphs, as [sampling] says: batches of edges with sampler=neighbour, "
        "else the edges within a subgraph; evaluation uses the whole graph",
    )
    split_seed: Natural = option(1, "seed of the shares, and of the negatives for ranking")
    width: Natural = option(0, "columns of a node's embedding; 0: model.hidden")
    scorer: str = option(
        "dot", f"score of two nodes' embeddings: {', '.join(SCORERS)}", values=tuple(SCORERS)
    )
    loss: str = option(
        "cross_entropy",
        f"loss of the scores: {', '.join(LINK_LOSSES)}; logistic: the mean "
        "over edges plus that over negatives",
        values=tuple(LINK_LOSSES),
    )
    margin: Positive = option(
        1.0, "by which an edge should exceed a negative", only_with={"loss": ("margin",)}
    )
    negatives: str = option(
        "uniform",
        "negative targets, drawn again in each epoch: uniform over the nodes; degree: targets of "
        "other edges; relation: nodes that are targets in the relation; batch: targets of the "
        "other edges in a batch of num_negatives + 1",
        values=NEGATIVES,
        traits=needs(Trait.OTHER_ENDS),
    )
    num_negatives: Count = option(4, "negatives for each edge in an epoch")
    ranking: str = option(
        "drawn",
        "what test edges are ranked against: drawn negatives, or all nodes",
        values=RANKINGS,
        traits=lacks({Trait.PLANNED: "its evaluation is not counted"}),
    )
    ranked: Count = option(
        100,
        "negatives for ranking a test edge, always the same",
        read_with={"ranking": ("drawn",)},
    )

    def __post_init__(self) -> None:
        check_values("links", self)
        if not self.stored:
            self.check_shares()

    def check_shares(self) -> None:
        """Raise `InputError` unless there are edges for the shares, and some to aggregate over.

        A split in the store decides instead, but only the store tells whether it has one.
        """
        total = round(self.train + self.valid + self.test, 9)
        fits, limit = (total < 1, "below 1") if self.disjoint else (total <= 1, "at most 1")
        require(fits, "links.train + links.valid + links.test", total, f"must be {limit}")
