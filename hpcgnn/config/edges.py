"""The configuration's section on predicting classes or numbers of edges."""

from dataclasses import dataclass

from hpcgnn.config.options import Chance, Natural, OpenShare, check_values, option, require


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgesConfig:
    """Which edges are predicted, and from what."""

    relations: tuple[str, ...] = option(
        (), "relations whose edges' labels are predicted; empty: all that have labels"
    )
    stored: bool = option(True, "use the split of edges in the store, if it has one")
    train: OpenShare = option(0.6, "otherwise the share of labelled edges to train on, in (0, 1)")
    valid: Chance = option(0.2, "share of labelled edges for validation, in [0, 1)")
    test: Chance = option(0.2, "share of labelled edges for testing, in [0, 1)")
    split_seed: Natural = option(1, "seed for drawing the shares")
    sampled: bool = option(
        False,
        "train on sampled subgraphs, as [sampling] says: batches of edges with sampler=neighbour, "
        "else the edges within a subgraph; evaluation uses the whole graph",
    )
    features: bool = option(True, "predict from the features of the edge too, if edges have some")
    width: Natural = option(0, "columns of a node's embedding; 0: model.hidden")
    hidden: Natural = option(0, "columns of the layer after two embeddings; 0: model.hidden")

    def __post_init__(self) -> None:
        check_values("edges", self)
        total = self.train + self.valid + self.test
        # Sums of decimal fractions may round to a little more than 1.
        name = "edges.train + edges.valid + edges.test"
        require(total <= 1 + 1e-9, name, total, "must be at most 1")
