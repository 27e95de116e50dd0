"""Rows that every pair of ranks would exchange in one product."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.operator import OperatorSize
from hpcgnn.typing import Array, LocalIndices, Offsets

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

    @property
    def operator_size(self) -> OperatorSize:
        """The size of the whole matrix, as its operators know it."""
        entries = int(self.entries.sum())
        return OperatorSize(self.num_rows, self.num_columns, entries, self.num_moved)
