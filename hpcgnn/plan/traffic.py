"""Rows that every pair of ranks would exchange in one product, counted by one process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hpcgnn.comm import RowMap
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.plan.block_row import BlockRows
from hpcgnn.sparse import DistCSR
from hpcgnn.spmm import LayerGhosts, ReplicaShares, Split, find_method
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Mask, Offsets

PatternKey: TypeAlias = tuple[int | None, str]
"""The number of the aggregation that a pattern belongs to, and its direction."""

ALL: PatternKey = (None, "in")
"""The pattern of all nodes; it serves every aggregation, in both directions."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """The ranks of a run that is planned.

    Parameters
    ----------
    starts
        (blocks + 1,) int64 rows of the block rows.
    exchange
        Replication, method and schedule.
    per_host
        Ranks of a host, which are numbered in a row; None: one host has all.
    """

    starts: Offsets
    exchange: ExchangeConfig
    per_host: int | None = None

    @property
    def num_blocks(self) -> int:
        """Block rows."""
        return len(self.starts) - 1

    def handled(self, replica: int) -> Array:
        """Return a mask of the block columns that a replica multiplies."""
        blocks = np.arange(self.num_blocks)
        return np.asarray(blocks % self.exchange.replication == replica)

    def hosts(self, replica: int) -> LocalIndices:
        """Return (blocks,) int32: the host of each rank of a layer, numbered by first ranks."""
        hosts = self.hosts_of_grid[replica :: self.exchange.replication]
        return np.unique(hosts, return_inverse=True)[1].astype(np.int32)

    @property
    def hosts_of_grid(self) -> LocalIndices:
        """(blocks replication,) int32: the host of each rank of the grid."""
        ranks = np.arange(self.num_blocks * self.exchange.replication, dtype=np.int32)
        return ranks // np.int32(self.per_host or len(ranks))


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
            split = Split.of(block, cover)
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

    def traffic(self, ranks: Ranks) -> "Traffic":
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


@dataclass(frozen=True, eq=False)
class Traffic:
    """Rows of one forward product; its adjoint moves them the other way.

    Parameters
    ----------
    fetched, pushed
        (blocks, blocks) int64: rows and partial sums that block row i gets from block row j.
    sums
        (2, 2, blocks, replication, replication) int64: rows that replicas of a block row send each
        other, to add up the product and its adjoint, to where a row is added up and from there.
    entries
        (blocks,) int64 non-zeros of each block row.
    """

    fetched: Array
    pushed: Array
    sums: Array
    entries: Array
    num_rows: int
    num_columns: int

    @property
    def num_moved(self) -> int:
        """Rows and partial sums in all."""
        return int(self.fetched.sum() + self.pushed.sum() + self.sums[0].sum())


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
