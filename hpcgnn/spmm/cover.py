"""The division of the remote part into entries that are fetched and entries that are pushed.

Every off-diagonal block is covered by some of its columns and some of its rows. For a covered
column, the row of X is fetched and multiplied here. All other entries lie in covered rows: the
owner of their column multiplies them and pushes one partial sum for each covered row. Covering by
columns only is the sparsity-aware exchange, by rows only its mirror image. A minimum vertex cover
(as large as a maximum matching, by König's theorem) is the joint exchange: no scheme that moves
rows or partial sums moves fewer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hpcgnn import kernels
from hpcgnn.kernels import transpose_csr
from hpcgnn.sparse import DistCSR, LocalCSR
from hpcgnn.typing import GlobalIndices, LocalIndices, Mask, Offsets

Cover: TypeAlias = Callable[[LocalCSR, Offsets], Mask]
"""Maps a remote part and the bounds (peers + 1,) of each owner's columns in it to the mask (nnz,)
of entries that are pushed."""


def all_columns(remote: LocalCSR, _starts: Offsets) -> Mask:
    """Fetch everything."""
    return np.zeros(remote.nnz, np.bool_)


def all_rows(remote: LocalCSR, _starts: Offsets) -> Mask:
    """Push everything."""
    return np.ones(remote.nnz, np.bool_)


def minimum(remote: LocalCSR, starts: Offsets) -> Mask:
    """Move the fewest rows of either kind."""
    return kernels.vertex_cover(remote.indptr, remote.indices, starts).pushed


@dataclass(frozen=True, eq=False)
class CoverSplit:
    """The entries of a remote part, divided by the rank that multiplies them.

    `fetched` and `pushed` (remote non-zeros,) mask the entries whose columns this rank fetches, and
    those that it leaves to the owners of their columns. Other entries belong to other replicas. If
    all are fetched, `fetched` is None. `used` (num_ghosts,) masks the ghosts that are fetched.
    """

    fetched: Mask | None
    pushed: Mask
    used: Mask

    @classmethod
    def of(
        cls, pattern: DistCSR, cover: Cover, replication: int = 1, replica: int = 0
    ) -> "CoverSplit":
        """Return the split of a pattern by a cover; replicas handle owners cyclically."""
        row_map, remote = pattern.row_map, pattern.remote
        # Ghosts ascend, so each owner's columns are one range: a block with a cover of its own.
        owners = row_map.owner(pattern.ghosts)
        bounds = np.searchsorted(owners, np.arange(row_map.num_blocks + 1)).astype(np.int64)
        # Cover all blocks, also those of other replicas, so that replicas agree.
        pushed = cover(remote, bounds)
        if replication == 1 and not pushed.any():
            # Every ghost has an entry. Pages of the zero mask are never allocated.
            return cls(None, pushed, np.ones(len(pattern.ghosts), np.bool_))
        # A replica handles whole blocks: dividing a block would move the rows that its entries
        # share more than once.
        handled = (owners % replication == replica)[remote.indices]
        fetched = handled & ~pushed
        # The cover saves the fetch of ghosts that have only pushed entries.
        used = np.zeros(len(pattern.ghosts), np.bool_)
        used[remote.indices[fetched]] = True
        return cls(fetched, handled & pushed, used)

    def block(self, matrix: DistCSR) -> LocalCSR:
        """Return C, the fetched entries of a matrix of the pattern; columns are used ghosts."""
        if self.fetched is None:
            return matrix.remote
        # Number the used ghosts.
        columns = np.where(self.used, np.cumsum(self.used) - 1, -1).astype(np.int32)
        return matrix.remote.select(columns, int(self.used.sum()), kept=self.fetched)

    def owners_of_pushed(self, pattern: DistCSR) -> LocalIndices:
        """Return (pushed entries,) int32 the rank that multiplies each."""
        return pattern.row_map.owner(pattern.ghosts)[pattern.remote.indices[self.pushed]]

    def pushed_entries(self, pattern: DistCSR) -> tuple[GlobalIndices, GlobalIndices]:
        """Return the global rows and the column nodes of pushed entries, in row order."""
        rows = pattern.remote.entry_rows()[self.pushed]
        # Send node numbers: the owner of a column does not know this rank's numbers in a matrix
        # restricted to some rows.
        if pattern.row_nodes is not None:
            rows = pattern.row_nodes[rows]
        columns = pattern.ghosts[pattern.remote.indices[self.pushed]]
        return pattern.result_map.to_global(rows), columns


@dataclass(frozen=True, eq=False)
class PushedEntries:
    """``Rᵀ``, the entries that this rank multiplies for the owners of their rows.

    `pattern` (own columns, rows pushed to) has no values; `targets` are the ascending int64 global
    numbers of its second axis. `order` is the position of each entry in the order of arrival.
    """

    pattern: LocalCSR
    targets: GlobalIndices
    order: Offsets

    @classmethod
    def of(cls, pattern: DistCSR, rows: GlobalIndices, columns: GlobalIndices) -> "PushedEntries":
        """Return the entries that arrived as int64 global `rows` and own nodes `columns`."""
        # No sort is needed: senders are in order of their rows and send entries row by row.
        first = np.flatnonzero(np.diff(rows, prepend=-1))
        # One partial sum is returned for each row, however many of its entries arrived.
        targets = rows[first]
        local = pattern.row_map.to_local(columns)
        positions = pattern.column_positions()
        if positions is not None:
            local = positions[local]
        # Transpose the CSR of entries by target: its rows become own columns. Values arrive later,
        # again for every scaling; `source` puts them in place without another sort.
        indptr, indices, _, source = transpose_csr(
            np.append(first, len(rows)), local, None, pattern.shape[1], with_source=True
        )
        assert source is not None
        transposed = LocalCSR(indptr, indices, None, (pattern.shape[1], len(targets)))
        return cls(transposed, targets, source)
