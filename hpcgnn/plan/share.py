"""What one rank would hold: the process that rehearses it gets this and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from hpcgnn.comm import Place, RowMap
from hpcgnn.config.config import Config
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.operator import Aggregation
from hpcgnn.plan.moves import Log
from hpcgnn.plan.survey import PatternShare
from hpcgnn.plan.traffic import PatternKey, Ranks, Traffic
from hpcgnn.sparse import HiddenEdges
from hpcgnn.storage import NodeBlock
from hpcgnn.train.objectives.objective import GraphObjective
from hpcgnn.typing import Array, Mask, Offsets


class Surveyed(Protocol):
    """What all ranks need for a pattern."""

    def traffic(self, ranks: Ranks) -> Traffic:
        """Return the rows that an exchange moves between block rows."""

    def share(self, ranks: Ranks, place: Place) -> PatternShare:
        """Return the matrix of the rank at a place, and what others tell it."""


class Predicted(Protocol):
    """What an objective predicts of one rank's share."""

    def objective(self, graph: LocalGraph, config: Config, log: Log) -> GraphObjective:
        """Return the objective of a rehearsed rank, which logs what it moves; collective."""


class Predictions(Protocol):
    """What an objective predicts of a whole graph, and moves beside the products of the model.

    Attributes
    ----------
    hidden
        Edges that the graph is read without; None for none.
    trains
        (n,) the nodes whose rank has something to train on.
    cuts_rows
        Whether `trains` are all rows that the loss reads, so that others may be left out.
    """

    hidden: HiddenEdges | None
    trains: Mask
    cuts_rows: bool

    def facts(self, facts: GraphFacts, config: Config) -> GraphFacts:
        """Return the sizes of the graph as the objective says them."""

    def traffic(self, starts: Offsets) -> dict[PatternKey, Traffic]:
        """Return what moves beside the products, by the rows of the ranks."""

    def share(self, starts: Offsets, block: int) -> Predicted:
        """Return what the rank of a block row predicts."""


class Planned(Protocol):
    """A graph that runs are planned on: a store's, or one of which degrees alone are known."""

    facts: GraphFacts
    wanted: tuple[Aggregation, ...]
    store_bytes: int

    def row_starts(self, blocks: int) -> Offsets:
        """Return (blocks + 1,) rows of so many block rows, as training assigns them."""

    def surveys(self, ranks: Ranks) -> Mapping[PatternKey, Surveyed]:
        """Return what ranks need for every pattern."""

    def traffic(self, starts: Offsets) -> Mapping[PatternKey, Traffic]:
        """Return what moves beside the products, by the rows of the ranks."""

    def trains(self, starts: Offsets) -> Array:
        """Return (blocks,) the training nodes of each block row."""

    def predicted(self, starts: Offsets, block: int) -> Predicted:
        """Return what the rank of a block row predicts."""

    def sets(self, row_map: RowMap) -> tuple[Mask, ...]:
        """Return the active sets of a block row; empty without any."""

    def read_nodes(self, row_map: RowMap) -> NodeBlock:
        """Return features, labels and split of a block of rows."""


@dataclass(frozen=True, eq=False)
class Share:
    """All that a rank holds before it trains.

    Parameters
    ----------
    config, facts
        Of the run.
    aggregations
        That the model wants.
    place
        In the grid.
    row_map
        Owners of the nodes.
    patterns
        Its matrices by their keys.
    sets
        The active sets ``S_0 .. S_L`` of its nodes; empty without active sets.
    nodes
        Of the rank, as the store holds them.
    predicted
        What it predicts.
    """

    config: Config
    facts: GraphFacts
    aggregations: tuple[Aggregation, ...]
    place: Place
    row_map: RowMap
    patterns: Mapping[PatternKey, PatternShare]
    sets: tuple[Mask, ...]
    nodes: NodeBlock
    predicted: Predicted


def make_share(
    whole: Planned,
    config: Config,
    ranks: Ranks,
    surveys: Mapping[PatternKey, Surveyed],
    block: int,
) -> Share:
    """Return the share of the rank that holds block row `block` and serves its columns.

    Parameters
    ----------
    whole
        The graph.
    config
        With the exchange that is rehearsed.
    ranks
        Of the run.
    surveys
        Of every pattern of `whole`, for these ranks.
    block
        The block row.
    """
    row_map, replication = RowMap(ranks.starts, block), ranks.exchange.replication
    replica = block % replication
    place = Place(ranks.num_blocks, replication, block, replica, ranks.hosts(replica))
    return Share(
        config=config,
        facts=whole.facts,
        aggregations=whole.wanted,
        place=place,
        row_map=row_map,
        patterns={key: survey.share(ranks, place) for key, survey in surveys.items()},
        sets=whole.sets(row_map),
        nodes=whole.read_nodes(row_map),
        predicted=whole.predicted(ranks.starts, block),
    )
