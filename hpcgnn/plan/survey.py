"""What all ranks need for a pattern, surveyed by one process that has it whole."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import Place, RowMap
from hpcgnn.operator import OperatorSize
from hpcgnn.plan.block_row import BlockRows
from hpcgnn.plan.traffic import Ranks, Traffic
from hpcgnn.sparse import DistCSR
from hpcgnn.spmm import CoverSplit, LayerGhosts, PushedEntries, ReplicaShares, find_method
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
class Needs:
    """What the ranks of one layer need of each other for a pattern.

    Parameters
    ----------
    fetched
        The nodes that each rank fetches.
    pushed
        The rows of the whole matrix that each rank pushes to.
    sizes
        (blocks,) int64 columns of each block row.
    """

    fetched: LayerGhosts
    pushed: LayerGhosts
    sizes: Array


@dataclass(frozen=True, eq=False)
class Survey:
    """What all block rows of a pattern need, whichever replica handles it.

    Parameters
    ----------
    whole
        The pattern, in one block.
    nodes
        For each block row the increasing nodes that it fetches.
    targets
        For each block row the increasing rows of the whole matrix that it pushes to.
    pushed
        (non-zeros,) the entries of `whole` that are pushed.
    entries, sizes
        (blocks,) int64 non-zeros and columns of each block row.
    sums
        As in `Traffic`.
    """

    whole: DistCSR
    nodes: Sequence[GlobalIndices]
    targets: Sequence[GlobalIndices]
    pushed: Mask
    entries: Array
    sizes: Array
    sums: Array

    @classmethod
    def of(cls, whole: DistCSR, ranks: Ranks) -> "Survey":
        """Return the survey of a pattern that one block holds."""
        copies, cover = ranks.exchange.replication, find_method(ranks.exchange.method).cover
        pushed = np.zeros(whole.diagonal.nnz, np.bool_)
        nodes, into, onto = [], [np.empty(0, np.int32)], [np.empty(0, np.int64)]
        entries, sizes = np.zeros((2, ranks.num_blocks), np.int64)
        sums = np.zeros((2, 2, ranks.num_blocks, copies, copies), np.int64)
        blocks = BlockRows(whole, ranks.starts)
        for place in range(ranks.num_blocks):
            block, stored = blocks.cut(place)
            split = CoverSplit.of(block, cover)
            pushed[stored[split.pushed]] = True
            nodes.append(block.ghosts[split.used])
            entries[place], sizes[place] = block.nnz, block.shape[1]
            if copies > 1:
                sums[0, :, place] = ReplicaShares.of_product(block, copies).counts
                sums[1, :, place] = ReplicaShares.of_adjoint(block, copies).counts
            if not split.pushed.any():
                continue
            # One sum for each row and each rank that has some of its pushed entries.
            owners, (rows, _) = split.owners_of_pushed(block), split.pushed_entries(block)
            num_rows = block.result_map.num_rows
            owners, rows = np.divmod(np.unique(owners * np.int64(num_rows) + rows), num_rows)
            into.append(owners.astype(np.int32))
            onto.append(rows)
        owners, rows = np.concatenate(into), np.concatenate(onto)
        order = np.argsort(owners, kind="stable")
        bounds = np.searchsorted(owners[order], np.arange(1, ranks.num_blocks))
        targets = np.split(rows[order], bounds)
        return cls(whole, nodes, targets, pushed, entries, sizes, sums)

    def layer(self, ranks: Ranks, replica: int) -> Needs:
        """Return the needs of one layer of the grid."""
        handled, hosts = ranks.handled(replica), ranks.hosts(replica)
        nodes, targets = self.nodes, self.targets
        if ranks.exchange.replication > 1:
            row_map = RowMap(ranks.starts, 0)
            nodes = [each[handled[row_map.owner(each)]] for each in nodes]
            targets = [
                each if mine else each[:0] for each, mine in zip(targets, handled, strict=True)
            ]
        sequential = ranks.exchange.schedule == "sequential"
        rows = ranks.starts * self.whole.num_relations
        return Needs(
            LayerGhosts(ranks.starts, nodes, hosts, sequential),
            LayerGhosts(rows, targets, hosts, sequential),
            self.sizes,
        )

    def traffic(self, ranks: Ranks) -> Traffic:
        """Return the rows that an exchange moves between block rows."""
        fetched, pushed = np.zeros((2, ranks.num_blocks, ranks.num_blocks), np.int64)
        received = find_method(ranks.exchange.method).received
        for replica in range(ranks.exchange.replication):
            needs, handled = self.layer(ranks, replica), ranks.handled(replica)
            if received is None:
                fetched += np.where(handled, needs.sizes, 0)
            else:
                fetched += np.array([each.counts for each in received(needs.fetched)])
                pushed += np.array([each.counts for each in received(needs.pushed)]).T
        np.fill_diagonal(fetched, 0)
        return Traffic(fetched, pushed, self.sums, self.entries, *self.whole.shape)

    def share(self, ranks: Ranks, place: Place) -> "PatternShare":
        """Return the matrix of the rank at a place, and what others tell it."""
        whole, traffic = self.whole, self.traffic(ranks)
        blocks = BlockRows(whole, ranks.starts)
        mine, pushed = blocks[place.block], None
        # Also where no sum leaves a host, which is all that some exchanges count.
        if self.pushed.any():
            pushed = PushedEntries.of(mine, *blocks.pushed_to(place.block, self.pushed))
        needs = self.layer(ranks, place.replica)
        return PatternShare(
            mine,
            traffic.operator_size,
            _answers(ranks, needs, needs.fetched, place, whole.column_nodes),
            _answers(ranks, needs, needs.pushed, place, whole.row_nodes),
            pushed,
        )


def count_traffic(whole: DistCSR, ranks: Ranks) -> Traffic:
    """Return the rows that an exchange moves between block rows.

    Parameters
    ----------
    whole
        The matrix, in one block.
    ranks
        The ranks, and how they exchange.
    """
    return Survey.of(whole, ranks).traffic(ranks)


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
