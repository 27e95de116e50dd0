"""Which entries of the remote part are fetched and which are pushed.

Every off-diagonal block is covered by some of its columns and some of its rows: a covered column's
row of X is fetched and multiplied here; the entries left lie in covered rows, are multiplied by the
owner of their column, and one partial sum for each covered row is pushed. All columns make the
sparsity-aware exchange, all rows its mirror image, and a minimum vertex cover (by König's theorem
as large as a maximum matching) the joint exchange: no scheme that moves rows or partial sums moves
fewer.
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
"""Maps a remote part, and the bounds (peers + 1,) of each owner's columns in it, to the (nnz,) mask
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
    """The entries of a remote part by who multiplies them.

    `fetched` and `pushed` (remote non-zeros,) mask entries whose columns this rank fetches, and
    entries that it leaves to the owners of their columns; the rest are another replica's. `fetched`
    is None where it is all of them. `used` (num_ghosts,) are the ghosts that are fetched.
    """

    fetched: Mask | None
    pushed: Mask
    used: Mask

    @classmethod
    def of(
        cls, pattern: DistCSR, cover: Cover, replication: int = 1, replica: int = 0
    ) -> "CoverSplit":
        """Return the split of a pattern by a cover; a replica handles every so manyth owner."""
        row_map, remote = pattern.row_map, pattern.remote
        # Ghosts increase, so the columns of each owner are one range, and each range is a block
        # whose cover does not depend on the others.
        owners = row_map.owner(pattern.ghosts)
        bounds = np.searchsorted(owners, np.arange(row_map.num_blocks + 1)).astype(np.int64)
        # The cover is of all blocks, so that replicas agree on it.
        pushed = cover(remote, bounds)
        if replication == 1 and not pushed.any():
            # Every ghost has an entry. A mask without a mark has no page in memory.
            return cls(None, pushed, np.ones(len(pattern.ghosts), np.bool_))
        # A replica keeps whole blocks: entries of one block share rows, and cut over replicas they
        # would move some of these rows twice.
        handled = (owners % replication == replica)[remote.indices]
        fetched = handled & ~pushed
        # A ghost all of whose entries are pushed is not fetched: this is what the cover saves.
        used = np.zeros(len(pattern.ghosts), np.bool_)
        used[remote.indices[fetched]] = True
        return cls(fetched, handled & pushed, used)

    def block(self, matrix: DistCSR) -> LocalCSR:
        """Return C: the fetched entries of a matrix of the pattern, by fetched ghost."""
        if self.fetched is None:
            return matrix.remote
        # The rank of a used ghost among the used ones.
        columns = np.where(self.used, np.cumsum(self.used) - 1, -1).astype(np.int32)
        return matrix.remote.select(columns, int(self.used.sum()), kept=self.fetched)

    def owners_of_pushed(self, pattern: DistCSR) -> LocalIndices:
        """Return (pushed entries,) int32: the rank that multiplies each."""
        return pattern.row_map.owner(pattern.ghosts)[pattern.remote.indices[self.pushed]]

    def pushed_entries(self, pattern: DistCSR) -> tuple[GlobalIndices, GlobalIndices]:
        """Return the rows of the whole matrix and the nodes of pushed entries, row by row."""
        rows = pattern.remote.entry_rows()[self.pushed]
        # The owner of a column knows nodes only; rows that a restricted matrix leaves out have no
        # number there.
        if pattern.row_nodes is not None:
            rows = pattern.row_nodes[rows]
        columns = pattern.ghosts[pattern.remote.indices[self.pushed]]
        return pattern.result_map.to_global(rows), columns


@dataclass(frozen=True, eq=False)
class PushedEntries:
    """``Rᵀ``: entries of other ranks' rows that this rank multiplies for them.

    `pattern` (own columns, rows that are pushed to) has no values; `targets` are its increasing
    int64 rows of the whole matrix. `order` says where each of its entries stands in the order of
    arrival.
    """

    pattern: LocalCSR
    targets: GlobalIndices
    order: Offsets

    @classmethod
    def of(cls, pattern: DistCSR, rows: GlobalIndices, columns: GlobalIndices) -> "PushedEntries":
        """Return what arrived at the rank that holds `pattern`: rows and own nodes, int64."""
        # Senders come in order of their rows, and send entries row by row: nothing is to be sorted.
        first = np.flatnonzero(np.diff(rows, prepend=-1))
        # One partial sum for each row, however many of its entries were pushed here.
        targets = rows[first]
        local = pattern.row_map.to_local(columns)
        positions = pattern.column_positions()
        if positions is not None:
            local = positions[local]
        # A CSR of the entries by target row, transposed: rows are own columns, columns are targets.
        # Values come later and again for every scaling; `source` lets them be put in place without
        # another sort.
        indptr, indices, _, source = transpose_csr(
            np.append(first, len(rows)), local, None, pattern.shape[1], with_source=True
        )
        assert source is not None
        transposed = LocalCSR(indptr, indices, None, (pattern.shape[1], len(targets)))
        return cls(transposed, targets, source)
