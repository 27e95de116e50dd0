"""The section of the configuration on classes and numbers of edges."""

from dataclasses import dataclass

from hpcgnn.config.options import Chance, Natural, OpenShare, check_values, option, require


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgesConfig:
    """Whose labels are predicted, and from what."""

    relations: tuple[str, ...] = option(
        (), "relations whose edges' labels are predicted; empty: all whose edges have some"
    )
    stored: bool = option(
        True, "where the store has a split of edges: edges are trained and tested on by it"
    )
    train: OpenShare = option(0.6, "else the share of labelled edges to train on, in (0, 1)")
    valid: Chance = option(0.2, "share of them that chooses the model, in [0, 1)")
    test: Chance = option(0.2, "share of them that is tested on, in [0, 1)")
    split_seed: Natural = option(1, "draws the shares")
    sampled: bool = option(
        False,
        "train on sampled subgraphs, as [sampling] says: batches of edges with sampler=neighbour, "
        "else the edges within a subgraph; judged on the whole graph",
    )
    features: bool = option(
        True, "predict from the features of the edge too, where edges have some"
    )
    width: Natural = option(0, "columns of a node's embedding; 0: model.hidden")
    hidden: Natural = option(0, "columns of the layer behind two embeddings; 0: model.hidden")

    def __post_init__(self) -> None:
        check_values("edges", self)
        total = self.train + self.valid + self.test
        # Three tenths and their like add up to a little more.
        name = "edges.train + edges.valid + edges.test"
        require(total <= 1 + 1e-9, name, total, "must be at most 1")
