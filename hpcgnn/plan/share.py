"""What one rank would hold: the process that rehearses it gets this and nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import Place, RowMap
from hpcgnn.config.config import Config
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.operator import Aggregation, OperatorSize
from hpcgnn.plan.block_row import BlockRows
from hpcgnn.plan.graph_pieces import GraphShare
from hpcgnn.plan.link_pairs import LinkShare
from hpcgnn.plan.traffic import Needs, PatternKey, Ranks, Survey
from hpcgnn.plan.whole_graph import WholeGraph
from hpcgnn.sparse import DistCSR
from hpcgnn.spmm import LayerGhosts, PushedEntries, find_method
from hpcgnn.storage import NodeBlock
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Mask


@dataclass(frozen=True, eq=False)
class Answers:
    """What other ranks would tell one ghost exchange of a rank; see `hpcgnn.spmm.Peers`.

    Parameters
    ----------
    peers, send_counts, recv_counts
        Of its plan, see `hpcgnn.comm.CommPlan`.
    wanted
        The nodes that it sends, by peer.
    of_host, sent_by_host
        The ghosts of every rank of its host, and the nodes that each sends, where its exchange asks
        for them.
    sizes
        (blocks,) int64 rows that each rank fetches from.
    rows_at_owners
        The row of each ghost in its owner's array, where its exchange asks for it.
    """

    peers: LocalIndices
    wanted: GlobalIndices
    send_counts: LocalIndices
    recv_counts: LocalIndices
    of_host: tuple[GlobalIndices, ...]
    sent_by_host: tuple[GlobalIndices, ...]
    sizes: Array
    rows_at_owners: LocalIndices | None = None


@dataclass(frozen=True, eq=False)
class PatternShare:
    """One matrix of a rank.

    Parameters
    ----------
    block
        The block row.
    size
        Of the whole matrix.
    fetch, push
        What the two ghost exchanges of the rank are told.
    pushed
        The entries that it multiplies for others; None where no rank pushes any.
    """

    block: DistCSR
    size: OperatorSize
    fetch: Answers
    push: Answers
    pushed: PushedEntries | None


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
        Its matrices by the keys of `WholeGraph.patterns`.
    sets
        The active sets ``S_0 .. S_L`` of its nodes; empty without active sets.
    nodes
        Of the rank, as the store holds them.
    links
        The edges that it predicts; None where it predicts none.
    graphs
        The graphs that it has nodes of or owns, where these are predicted as a whole.
    """

    config: Config
    facts: GraphFacts
    aggregations: tuple[Aggregation, ...]
    place: Place
    row_map: RowMap
    patterns: Mapping[PatternKey, PatternShare]
    sets: tuple[Mask, ...]
    nodes: NodeBlock
    links: LinkShare | None = None
    graphs: GraphShare | None = None


def make_share(
    whole: WholeGraph,
    config: Config,
    ranks: Ranks,
    surveys: Mapping[PatternKey, Survey],
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
    patterns = {key: _pattern_share(surveys[key], ranks, place) for key in whole.patterns}
    return Share(
        config=config,
        facts=whole.facts,
        aggregations=whole.wanted,
        place=place,
        row_map=row_map,
        patterns=patterns,
        sets=tuple(each[row_map.start : row_map.stop].copy() for each in whole.sets),
        nodes=whole.read_nodes(row_map),
        links=whole.pairs.share(ranks.starts, block) if whole.pairs else None,
        graphs=whole.graphs.share(ranks.starts, block) if whole.graphs else None,
    )


def _pattern_share(survey: Survey, ranks: Ranks, place: Place) -> PatternShare:
    whole, traffic = survey.whole, survey.traffic(ranks)
    blocks = BlockRows(whole, ranks.starts)
    mine, pushed = blocks[place.block], None
    # Also where no sum leaves a host, which is all that some exchanges count.
    if survey.pushed.any():
        pushed = PushedEntries.of(mine, *blocks.pushed_to(place.block, survey.pushed))
    needs = survey.layer(ranks, place.replica)
    num_entries = int(traffic.entries.sum())
    return PatternShare(
        mine,
        OperatorSize(traffic.num_rows, traffic.num_columns, num_entries, traffic.num_moved),
        _answers(ranks, needs, needs.fetched, place, whole.column_nodes),
        _answers(ranks, needs, needs.pushed, place, whole.row_nodes),
        pushed,
    )


def _answers(
    ranks: Ranks,
    needs: Needs,
    ghosts: LayerGhosts,
    place: Place,
    stored: LocalIndices | None,
) -> Answers:
    """Return what the ranks tell the one at `place`.

    Parameters
    ----------
    ranks, needs
        All ranks.
    ghosts
        Of all ranks of the layer.
    place
        The rank.
    stored
        The nodes that arrays of all ranks together hold, in order; None: all.
    """
    received, no_nodes = find_method(ranks.exchange.method).received, np.empty(0, np.int64)
    if received is None:
        none = np.empty(0, np.int32)
        rows = _rows_at_owners(ghosts, place.block, stored)
        return Answers(none, no_nodes, none, none, (), (), needs.sizes, rows)
    # What ranks receive decides what this one sends: a plan has no other source.
    requests = received(ghosts)

    def sent_by(rank: int) -> GlobalIndices:
        return np.concatenate([no_nodes, *(each.of_rank(rank) for each in requests)])

    sent = np.array([each.counts[place.block] for each in requests], np.int32)
    got = requests[place.block].counts
    peers = np.flatnonzero((sent > 0) | (got > 0)).astype(np.int32)
    mates: Sequence[int] = []
    # An exchange that brings a rank its own ghosts asks nothing of its host.
    if any(own is not each.nodes for own, each in zip(ghosts.nodes, requests, strict=True)):
        mates = np.flatnonzero(place.hosts == place.hosts[place.block]).tolist()
    return Answers(
        peers,
        sent_by(place.block),
        sent[peers],
        got[peers],
        tuple(ghosts.nodes[mate] for mate in mates),
        tuple(sent_by(mate) for mate in mates),
        needs.sizes,
    )


def _rows_at_owners(ghosts: LayerGhosts, rank: int, stored: LocalIndices | None) -> LocalIndices:
    nodes, starts = ghosts.nodes[rank], ghosts.starts
    owners = RowMap(starts, rank).owner(nodes)
    if stored is not None:
        nodes, starts = np.searchsorted(stored, nodes), np.searchsorted(stored, starts)
    return (nodes - starts[owners]).astype(np.int32)
