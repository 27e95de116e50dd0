"""The direct ghost exchange: one neighbourhood all-to-all of exactly the rows that are needed.

Algorithm 1 of "Sparsity-Aware Communication for Distributed Graph Neural Network Training". All
ghosts are one stage.
"""

import numpy as np

from hpcgnn import kernels
from hpcgnn.comm import BufferPool, CommPlan, ProcessGrid, Transfer, Volume
from hpcgnn.sparse import LocalCSR
from hpcgnn.spmm.ghosts import Combine, Ghosts, Wire, exchange_span, world_ranks
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, LocalIndices

__all__ = ["PlannedExchange"]


class PlannedExchange:
    """Fetch every ghost once from its owner; push one partial sum for every ghost.

    Collective.

    Parameters
    ----------
    grid
        The ranks.
    ghosts
        What to move.
    wire
        How numbers travel.
    trace
        Where rows and bytes are recorded.
    """

    def __init__(self, grid: ProcessGrid, ghosts: Ghosts, wire: Wire, trace: TraceRecorder) -> None:
        self.wire, self.trace = wire, trace
        self.plan = CommPlan.from_ghosts(grid, ghosts.row_map, ghosts.nodes, ghosts.positions)
        self.sent, self.received = self.plan.volume().sent, self.plan.volume().received
        self.peers = world_ranks(grid)
        self.pool = BufferPool()
        self.sequential = False

    def split(self, block: LocalCSR) -> tuple[LocalCSR, ...]:
        """Return the block as it is.

        Not collective.
        """
        return (block,)

    split_push = split

    def ghosts_of(self, index: int) -> LocalIndices:
        """Return all ghosts in order.

        Not collective.
        """
        assert index == 0
        return np.arange(self.plan.num_ghosts, dtype=np.int32)

    push_ghosts_of = ghosts_of

    def start_fetch(self, x: Array) -> "_Fetch":
        """Pack and start the all-to-all.

        Collective.
        """
        return _Fetch(self, x)

    def start_push(self, like: Array, combine: Combine, *, additive: bool = False) -> "_Push":
        """Prepare the return of partial sums; it starts with `send`.

        Collective.
        """
        del additive
        return _Push(self, like, combine)

    def volume(self) -> Volume:
        """Return the rows of one fetch.

        Not collective.
        """
        return self.plan.volume()

    def buffers(self, like: Array) -> tuple[Array, Array]:
        """Return the buffers of the ghosts and of the owner's side, for rows as wide as `like`."""
        width, dtype = like.shape[1], self.wire.dtype(like)
        ghosts = self.pool.get("ghosts", (self.plan.num_ghosts, width), dtype)
        return ghosts, self.pool.get("owned", (self.plan.num_sent, width), dtype)


class _Fetch:
    def __init__(self, exchange: PlannedExchange, x: Array) -> None:
        self._ghosts, packed = exchange.buffers(x)
        with exchange_span(
            exchange.trace, "exchange.forward", exchange.sent, packed, exchange.peers
        ):
            rows, half = exchange.plan.send_rows, exchange.wire.half
            kernels.gather_rows(x, rows, packed, half=half)
            self._transfer = exchange.plan.start_forward(packed, self._ghosts)

    def stage(self, index: int) -> Array:
        assert index == 0
        self._transfer.wait()
        return self._ghosts


class _Push:
    def __init__(self, exchange: PlannedExchange, like: Array, combine: Combine) -> None:
        self._exchange, self._combine = exchange, combine
        self._ghosts, self._arrived = exchange.buffers(like)
        self._transfer: Transfer | None = None

    def buffer(self, index: int) -> Array:
        assert index == 0
        return self._ghosts

    def send(self, index: int) -> None:
        assert index == 0
        exchange = self._exchange
        with exchange_span(
            exchange.trace, "exchange.reverse", exchange.received, self._ghosts, exchange.peers
        ):
            self._transfer = exchange.plan.start_reverse(self._ghosts, self._arrived)

    def finish(self) -> None:
        assert self._transfer is not None, "a push is finished before it is sent"
        exchange = self._exchange
        with exchange.trace.span("wait.reverse"):
            self._transfer.wait()
        with exchange.trace.span("boundary.add"):
            for start, stop in exchange.plan.send_ranges:
                self._combine(exchange.plan.send_rows[start:stop], self._arrived[start:stop])
