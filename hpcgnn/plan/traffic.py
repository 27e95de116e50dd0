"""Rows that every pair of ranks would exchange in one product, counted by one process."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import RowMap
from hpcgnn.plan.cut import cut
from hpcgnn.sparse import DistCSR
from hpcgnn.spmm import COVERS
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Mask, Offsets

__all__ = ["BlockCover", "Traffic", "count_traffic", "cover_block"]


@dataclass(frozen=True, eq=False)
class BlockCover:
    """What one block row gets from all others.

    Parameters
    ----------
    block
        The block row.
    bounds
        (blocks + 1,) where the columns of each owner begin among its ghosts.
    pushed
        (remote non-zeros,) entries that the owner of their column multiplies.
    """

    block: DistCSR
    bounds: Offsets
    pushed: Mask

    def fetched_columns(self) -> tuple[LocalIndices, LocalIndices]:
        """Return each ghost that is fetched, by owner, and that owner."""
        ghosts = np.unique(self.block.remote.indices[~self.pushed])
        return ghosts, self._owner(ghosts)

    def pushed_rows(self) -> tuple[LocalIndices, LocalIndices]:
        """Return each row that another rank pushes to, by that rank, and that rank."""
        remote = self.block.remote
        rows = remote.entry_rows()[self.pushed].astype(np.int64)
        owners = self._owner(remote.indices[self.pushed])
        num_rows = max(self.block.shape[0], 1)
        owner, row = np.divmod(np.unique(owners * np.int64(num_rows) + rows), num_rows)
        return row.astype(np.int32), owner.astype(np.int32)

    def pushed_entries(self, owner: int) -> tuple[GlobalIndices, GlobalIndices]:
        """Return the rows of the whole matrix and the nodes of entries that `owner` multiplies."""
        block, remote = self.block, self.block.remote
        chosen = self.pushed & (self._owner(remote.indices) == owner)
        rows = remote.entry_rows()[chosen]
        if block.row_nodes is not None:
            rows = block.row_nodes[rows]
        return block.result_map.to_global(rows), block.ghosts[remote.indices[chosen]]

    def _owner(self, ghosts: LocalIndices) -> LocalIndices:
        return (np.searchsorted(self.bounds, ghosts, side="right") - 1).astype(np.int32)


def cover_block(block: DistCSR, exchange: str) -> BlockCover:
    """Return what a block row gets under an exchange, by the cover that training computes.

    Not collective.
    """
    row_map = block.row_map
    owners = row_map.owner(block.ghosts)
    bounds = np.searchsorted(owners, np.arange(row_map.num_blocks + 1)).astype(np.int64)
    return BlockCover(block, bounds, COVERS[exchange](block.remote, bounds))


@dataclass(frozen=True, eq=False)
class Traffic:
    """Rows of one forward product; its adjoint moves them the other way.

    Parameters
    ----------
    fetched, pushed
        (blocks, blocks) int64: rows and partial sums that block row i gets from block row j.
    entries
        (blocks,) int64 non-zeros of each block row.
    num_rows, num_columns
        Of the whole matrix.
    """

    fetched: Array
    pushed: Array
    entries: Array
    num_rows: int
    num_columns: int

    @property
    def num_moved(self) -> int:
        """Rows and partial sums in all."""
        return int(self.fetched.sum() + self.pushed.sum())

    def of_half(self, half: str) -> Array:
        """Return `fetched` or `pushed`."""
        return self.fetched if half == "fetched" else self.pushed


def blocks_of(whole: DistCSR, starts: Offsets) -> Iterator[DistCSR]:
    """Yield all block rows, one at a time in memory."""
    for place in range(len(starts) - 1):
        yield cut(whole, RowMap(starts, place))


def count_traffic(whole: DistCSR, starts: Offsets, exchange: str) -> Traffic:
    """Return the rows that an exchange moves between block rows.

    Not collective.

    Parameters
    ----------
    whole
        The matrix, in one block.
    starts
        (blocks + 1,) int64 rows of the ranks.
    exchange
        A key of `hpcgnn.spmm.COVERS`.
    """
    num_blocks = len(starts) - 1
    fetched, pushed = np.zeros((2, num_blocks, num_blocks), np.int64)
    entries = np.zeros(num_blocks, np.int64)
    for place, block in enumerate(blocks_of(whole, starts)):
        cover = cover_block(block, exchange)
        fetched[place] = np.bincount(cover.fetched_columns()[1], minlength=num_blocks)
        pushed[place] = np.bincount(cover.pushed_rows()[1], minlength=num_blocks)
        entries[place] = block.nnz
    return Traffic(fetched, pushed, entries, *whole.shape)
