"""The sparsity-aware exchange: every ghost row that is needed is fetched once, and no other.

Algorithm 1 of "Sparsity-Aware Communication for Distributed Graph Neural Network Training": one
personalised all-to-all of the needed rows, overlapped with the product in own columns. All ghosts
are one stage.
"""

import numpy as np

from hpcgnn.comm import BufferPool, CommPlan, ProcessGrid, RowMap, Volume
from hpcgnn.comm.plan import Exchange as Transfer
from hpcgnn.sparse import LocalCSR
from hpcgnn.spmm.exchange import exchange_span
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, GlobalIndices

__all__ = ["AwareExchange"]


class AwareExchange:
    """Fetch the ghosts that this replica handles.

    Collective.

    Parameters
    ----------
    grid
        The ranks.
    row_map
        Owners of the rows.
    ghosts
        (num_ghosts,) int64 increasing global rows of the matrix' remote columns.
    trace
        Where rows and bytes are recorded.
    """

    name = "aware"

    def __init__(
        self, grid: ProcessGrid, row_map: RowMap, ghosts: GlobalIndices, trace: TraceRecorder
    ) -> None:
        mine = row_map.owner(ghosts) % grid.replication == grid.replica
        self._plan = CommPlan.from_ghosts(grid.layer, row_map, ghosts[mine])
        self._columns = np.where(mine, np.cumsum(mine) - 1, -1).astype(np.int32)
        self._all = bool(mine.all())
        self._peers = np.arange(grid.num_blocks) * grid.replication + grid.replica
        self._trace = trace
        self._pool = BufferPool()

    def split(self, remote: LocalCSR) -> tuple[LocalCSR, ...]:
        """Return one block: the columns that this replica handles.

        Not collective.
        """
        if self._all:
            return (remote,)
        return (remote.relabel_columns(self._columns, self._plan.num_ghosts),)

    def start_fetch(self, x: Array) -> "_Fetch":
        """Start the all-to-all of needed rows.

        Collective.
        """
        ghosts = self._pool.get("ghosts", (self._plan.num_ghosts, x.shape[1]), x.dtype)
        sent = self.volume().sent
        with exchange_span(self._trace, "exchange.forward", sent, x, self._peers):
            transfer = self._plan.start_forward(x, ghosts, self._pool)
        return _Fetch(transfer, ghosts)

    def start_push(self, like: Array) -> "_Push":
        """Prepare the return of partial sums; it starts with `send`.

        Collective.
        """
        return _Push(self, like)

    def volume(self) -> Volume:
        """Return the rows of one fetch.

        Not collective.
        """
        return self._plan.volume()


class _Fetch:
    def __init__(self, transfer: Transfer, ghosts: Array) -> None:
        self._transfer, self._ghosts = transfer, ghosts

    def stage(self, index: int) -> Array:
        assert index == 0
        self._transfer.wait()
        return self._ghosts


class _Push:
    def __init__(self, exchange: AwareExchange, like: Array) -> None:
        self._exchange, self._like = exchange, like
        plan, width = exchange._plan, like.shape[1]
        self._ghosts = exchange._pool.get("ghosts", (plan.num_ghosts, width), like.dtype)
        self._arrived = exchange._pool.get("arrived", (plan.num_sent, width), like.dtype)

    def buffer(self, index: int) -> Array:
        assert index == 0
        return self._ghosts

    def send(self, index: int) -> None:
        assert index == 0
        exchange = self._exchange
        sent = exchange.volume().received
        with exchange_span(exchange._trace, "exchange.reverse", sent, self._like, exchange._peers):
            self._transfer = exchange._plan.start_reverse(self._ghosts, self._arrived)

    def finish(self, out: Array) -> None:
        with self._exchange._trace.span("wait.reverse"):
            self._transfer.wait()
        with self._exchange._trace.span("boundary.add"):
            self._exchange._plan.add_arrived(self._arrived, out)
