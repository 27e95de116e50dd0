"""Exchanges as a product sees them: they cut a matrix into its fetched and its pushed half.

An exchange is made once for a pattern, and binds every matrix of that pattern: scalings of one
adjacency share plans and buffers.
"""

from typing import Protocol

import numpy as np

from hpcgnn.comm import ProcessGrid, Volume, redistribute
from hpcgnn.kernels import transpose_csr
from hpcgnn.sparse import DistCSR, LocalCSR
from hpcgnn.spmm.carrier import Carrier
from hpcgnn.spmm.cover import Cover
from hpcgnn.spmm.ghosts import GhostExchange, Ghosts, Wire
from hpcgnn.spmm.remote import Halves, RemoteHalf
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, FloatArray

__all__ = ["CoveredExchange", "Exchange", "FetchAll", "GhostFactory"]


class GhostFactory(Protocol):
    """Makes a ghost exchange."""

    def __call__(
        self,
        grid: ProcessGrid,
        ghosts: Ghosts,
        wire: Wire,
        trace: TraceRecorder,
        *,
        carrier: Carrier,
    ) -> GhostExchange:
        """Return the exchange.

        Collective.
        """
        ...


class Exchange(Protocol):
    """A way to move what the remote part of a matrix needs."""

    carrier: Carrier

    def bind(self, matrix: DistCSR) -> Halves:
        """Return the halves of the remote part of a matrix of the exchange's pattern.

        Collective.
        """
        ...

    def volume(self) -> Volume:
        """Return the rows and partial sums that one product moves; its adjoint moves them back.

        Not collective.
        """
        ...


class CoveredExchange:
    """Fetch some columns and push some rows, as a cover of every block says.

    Collective.

    Parameters
    ----------
    grid
        The ranks; a replica moves only what its block columns need.
    pattern
        The matrix, with any values.
    cover
        Chooses the entries to push.
    make_ghosts
        Moves the rows.
    wire, trace, carrier
        As for `PlannedExchange`.
    """

    def __init__(
        self,
        grid: ProcessGrid,
        pattern: DistCSR,
        cover: Cover,
        make_ghosts: GhostFactory,
        wire: Wire,
        trace: TraceRecorder,
        carrier: Carrier,
    ) -> None:
        self._grid, self.carrier = grid, carrier
        row_map, remote = pattern.row_map, pattern.remote
        owners = row_map.owner(pattern.ghosts)
        handled = (owners % grid.replication == grid.replica)[remote.indices]
        bounds = np.searchsorted(owners, np.arange(grid.num_blocks + 1)).astype(np.int64)
        pushed = cover(remote, bounds)
        self._fetched, self._pushed = handled & ~pushed, handled & pushed
        used = np.zeros(len(pattern.ghosts), np.bool_)
        used[remote.indices[self._fetched]] = True
        self._columns = (np.cumsum(used) - 1).astype(np.int32)
        nodes = pattern.ghosts[used]
        self._num_fetched = len(nodes)
        columns = pattern.column_positions()
        self._fetch = make_ghosts(
            grid,
            Ghosts(row_map, nodes, columns, pattern.shape[1]),
            wire,
            trace,
            carrier=carrier,
        )
        # Where nothing at all is pushed, no rank needs the second half.
        self._push: GhostExchange | None = None
        if grid.layer.allreduce(int(self._pushed.sum())) > 0:
            nodes = self._receive_pattern(pattern)
            rows = pattern.row_positions()
            ghosts = Ghosts(pattern.result_map, nodes, rows, pattern.shape[0])
            self._push = make_ghosts(grid, ghosts, wire, trace, carrier=carrier)

    def bind(self, matrix: DistCSR) -> Halves:
        """Return both halves; the values of pushed entries travel to the owners of their columns.

        Collective.
        """
        block = matrix.remote.select(self._columns, self._num_fetched, kept=self._fetched)
        fetched = RemoteHalf(self._fetch, block)
        if self._push is None:
            return fetched, None
        values = self._receive_values(matrix.remote.values)
        return fetched, RemoteHalf(self._push, self._pushed_pattern.with_values(values))

    def volume(self) -> Volume:
        """Return fetched and pushed rows.

        Not collective.
        """
        volume = self._fetch.volume()
        # Fetched rows leave the owner of a column, and so do pushed sums: the adjoint of a fetch.
        return volume if self._push is None else volume + self._push.volume().reversed()

    def _receive_pattern(self, pattern: DistCSR) -> Array:
        """Send pushed entries to the owners of their columns; return the rows pushed to, int64."""
        row_map, remote = pattern.row_map, pattern.remote
        rows = remote.entry_rows()[self._pushed]
        if pattern.row_nodes is not None:
            rows = pattern.row_nodes[rows]
        columns = pattern.ghosts[remote.indices[self._pushed]]
        self._owners = row_map.owner(columns)
        rows, columns = redistribute(
            self._grid.layer, self._owners, pattern.result_map.to_global(rows), columns
        )
        # Senders come in order of their rows, and send entries row by row: nothing is to be sorted.
        first = np.flatnonzero(np.diff(rows, prepend=-1))
        targets = rows[first]
        local = row_map.to_local(columns)
        positions = pattern.column_positions()
        if positions is not None:
            local = positions[local]
        # A CSR of the entries by target row, transposed: rows are own columns, columns are targets.
        indptr, indices, _, source = transpose_csr(
            np.append(first, len(rows)), local, None, pattern.shape[1], with_source=True
        )
        assert source is not None
        self._order = source
        self._pushed_pattern = LocalCSR(indptr, indices, None, (pattern.shape[1], len(targets)))
        return targets

    def _receive_values(self, values: FloatArray | None) -> FloatArray | None:
        if values is None:
            return None
        (arrived,) = redistribute(self._grid.layer, self._owners, values[self._pushed])
        in_order: FloatArray = arrived[self._order]
        return in_order


class FetchAll:
    """Fetch through a ghost exchange that makes no choice between entries.

    Collective; see `CoveredExchange` for the parameters.
    """

    def __init__(
        self,
        grid: ProcessGrid,
        pattern: DistCSR,
        make_ghosts: GhostFactory,
        wire: Wire,
        trace: TraceRecorder,
        carrier: Carrier,
    ) -> None:
        self.carrier = carrier
        positions = pattern.column_positions()
        ghosts = Ghosts(pattern.row_map, pattern.ghosts, positions, pattern.shape[1])
        self._ghosts = make_ghosts(grid, ghosts, wire, trace, carrier=carrier)

    def bind(self, matrix: DistCSR) -> Halves:
        """Return the fetched half.

        Not collective.
        """
        return RemoteHalf(self._ghosts, matrix.remote), None

    def volume(self) -> Volume:
        """Return the rows of one product.

        Not collective.
        """
        return self._ghosts.volume()
