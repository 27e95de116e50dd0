"""What one rank would hold: the process that rehearses it gets this and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import RowMap
from hpcgnn.nn import Aggregations
from hpcgnn.plan.traffic import BlockCover, Traffic, blocks_of, cover_block
from hpcgnn.plan.whole import Pattern, WholeGraph
from hpcgnn.sparse import DistCSR, LocalCSR, OperatorSize
from hpcgnn.storage import NodeBlock
from hpcgnn.train.config import Config
from hpcgnn.train.local_graph import GraphFacts
from hpcgnn.typing import Array, LocalIndices, Mask, Offsets

__all__ = ["Halves", "Messages", "PatternShare", "Share", "make_share"]


@dataclass(frozen=True, eq=False)
class Messages:
    """The messages of one ghost exchange of a rank; see `hpcgnn.comm.CommPlan`.

    Parameters
    ----------
    peers
        (neighbours,) int32 ranks of the layer.
    send_rows
        (rows sent,) int32 rows of the owner's array, by neighbour.
    send_counts, recv_counts
        (neighbours,) int32.
    """

    peers: LocalIndices
    send_rows: LocalIndices
    send_counts: LocalIndices
    recv_counts: LocalIndices

    @classmethod
    def of(cls, send_rows: list[LocalIndices], recv_counts: Array) -> "Messages":
        """Return the messages for the rows to each block, and the number from each."""
        sent = np.array([len(rows) for rows in send_rows], np.int64)
        peers = np.flatnonzero((sent > 0) | (recv_counts > 0)).astype(np.int32)
        rows = np.concatenate([np.empty(0, np.int32), *send_rows]).astype(np.int32)
        counts = sent[peers].astype(np.int32), recv_counts[peers].astype(np.int32)
        return cls(peers, rows, *counts)


@dataclass(frozen=True, eq=False)
class Halves:
    """A rank's share of an exchange, see `hpcgnn.spmm.exchange.CoveredExchange`.

    Parameters
    ----------
    fetched
        (remote non-zeros,) entries that this rank multiplies itself.
    fetch
        Rows that it fetches.
    push
        Partial sums that it pushes, None where no rank pushes any.
    pattern
        The entries that it multiplies for others, (own columns, rows that it pushes to).
    """

    fetched: Mask
    fetch: Messages
    push: Messages | None
    pattern: LocalCSR | None


@dataclass(frozen=True, eq=False)
class PatternShare:
    """One matrix of a rank.

    Parameters
    ----------
    block
        The block row.
    halves
        How its remote part is exchanged.
    size
        Of the whole matrix.
    """

    block: DistCSR
    halves: Halves
    size: OperatorSize


@dataclass(frozen=True, eq=False)
class Share:
    """All that a rank holds before it trains.

    Parameters
    ----------
    config, facts
        Of the run.
    aggregations
        That the model wants.
    num_blocks, block, replica
        Its place in the grid.
    row_map
        Owners of the nodes.
    patterns
        Its matrices by the keys of `WholeGraph.patterns`.
    sets
        The active sets ``S_0 .. S_L`` of its nodes; empty without active sets.
    nodes
        Of the rank, as the store holds them.
    """

    config: Config
    facts: GraphFacts
    aggregations: tuple[Aggregations, ...]
    num_blocks: int
    block: int
    replica: int
    row_map: RowMap
    patterns: Mapping[str, PatternShare]
    sets: tuple[Mask, ...]
    nodes: NodeBlock


def make_share(
    whole: WholeGraph, config: Config, starts: Offsets, traffic: Mapping[str, Traffic], block: int
) -> Share:
    """Return the share of the rank that holds block row `block` and serves its columns.

    Not collective.

    Parameters
    ----------
    whole
        The graph.
    config
        With the exchange and the replication that are rehearsed.
    starts
        (blocks + 1,) int64 rows of the block rows.
    traffic
        Of every pattern of `whole`.
    block
        The block row.
    """
    row_map = RowMap(starts, block)
    replication = config.exchange.replication
    shares = {}
    for key, pattern in whole.patterns.items():
        counted = traffic[key]
        halves, mine = _halves(pattern, row_map, counted, config)
        num_entries = int(counted.entries.sum())
        size = OperatorSize(counted.num_rows, counted.num_columns, num_entries, counted.num_moved)
        shares[key] = PatternShare(mine, halves, size)
    sets = tuple(each[row_map.start : row_map.stop].copy() for each in whole.sets)
    return Share(
        config=config,
        facts=whole.facts,
        aggregations=whole.wanted,
        num_blocks=row_map.num_blocks,
        block=block,
        replica=block % replication,
        row_map=row_map,
        patterns=shares,
        sets=sets,
        nodes=whole.read_nodes(row_map),
    )


def _halves(
    pattern: Pattern, row_map: RowMap, traffic: Traffic, config: Config
) -> tuple[Halves, DistCSR]:
    """Return how a rank exchanges the remote part of its block row, and that block row."""
    here, replication = row_map.block, config.exchange.replication
    handled = np.arange(row_map.num_blocks) % replication == here % replication
    sends: list[LocalIndices] = []
    rows: list[Array] = []
    nodes: list[Array] = []
    mine: BlockCover | None = None
    for place, block in enumerate(blocks_of(pattern.matrix, row_map.starts)):
        cover = cover_block(block, config.exchange.method)
        if place == here:
            mine = cover
            sends.append(np.empty(0, np.int32))
            continue
        ghosts, owners = cover.fetched_columns()
        sends.append(row_map.to_local(block.ghosts[ghosts[owners == here]]))
        for into, found in zip((rows, nodes), cover.pushed_entries(here), strict=True):
            into.append(found)
    assert mine is not None
    block = mine.block
    positions = block.column_positions()
    if positions is not None:
        sends = [positions[each] for each in sends]
    owner_of_ghost = row_map.owner(block.ghosts)
    taken = handled[owner_of_ghost][block.remote.indices]
    fetch = Messages.of(sends, np.where(handled, traffic.fetched[here], 0))
    halves = Halves(taken & ~mine.pushed, fetch, None, None)
    if traffic.pushed.sum() == 0:
        return halves, block
    push_rows, readers = mine.pushed_rows()
    arrive = [
        push_rows[readers == place] if handled[place] else push_rows[:0]
        for place in range(row_map.num_blocks)
    ]
    push = Messages.of(arrive, traffic.pushed[:, here])
    pushing = _pushed_pattern(block, np.concatenate(rows), np.concatenate(nodes))
    return Halves(halves.fetched, fetch, push, pushing), block


def _pushed_pattern(block: DistCSR, rows: Array, nodes: Array) -> LocalCSR:
    """Return entries of other ranks' rows as a matrix of own columns by rows pushed to."""
    targets, numbers = np.unique(rows, return_inverse=True)
    columns = block.row_map.to_local(nodes)
    positions = block.column_positions()
    if positions is not None:
        columns = positions[columns]
    order = np.lexsort((numbers, columns))
    counts = np.bincount(columns, minlength=block.shape[1])
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    indices = numbers[order].astype(np.int32)
    return LocalCSR(indptr, indices, None, (block.shape[1], len(targets)))
