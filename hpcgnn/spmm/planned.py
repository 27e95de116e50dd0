"""The direct ghost exchange: one neighbourhood all-to-all of exactly the rows that are needed.

Algorithm 1 of "Sparsity-Aware Communication for Distributed Graph Neural Network Training". All
ghosts are one stage.
"""

import numpy as np

from hpcgnn.comm import ProcessGrid, Volume
from hpcgnn.sparse import LocalCSR
from hpcgnn.spmm.carrier import Carrier, Crossing
from hpcgnn.spmm.ghosts import Combine, Ghosts, Wire
from hpcgnn.spmm.spans import Moved, exchange_span, world_ranks
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
    carrier
        Where the rows are.
    """

    sequential = False

    def __init__(
        self,
        grid: ProcessGrid,
        ghosts: Ghosts,
        wire: Wire,
        trace: TraceRecorder,
        carrier: Carrier,
    ) -> None:
        self.wire, self.trace = wire, trace
        self.carrier = carrier
        self.plan = ghosts.make_plan(grid)
        self.send_rows = self.carrier.memory.put(self.plan.send_rows)
        volume, ranks = self.plan.volume(), world_ranks(grid)
        self.sent = Moved.of_counts(volume.sent, ranks)
        self.received = Moved.of_counts(volume.received, ranks)

    def split(self, block: LocalCSR) -> tuple[LocalCSR, ...]:
        """Return the block as it is.

        Not collective.
        """
        return (block,)

    def split_push(self, block: LocalCSR) -> None:
        """Return None: a push has the one stage of a fetch.

        Not collective.
        """

    def ghosts_of(self, index: int) -> LocalIndices:
        """Return all ghosts in order.

        Not collective.
        """
        assert index == 0
        return np.arange(self.plan.num_ghosts, dtype=np.int32)

    push_ghosts_of = ghosts_of

    def start_fetch(self, x: Array, *, keep: bool = False) -> "_Fetch":
        """Pack and start the all-to-all; the rows are valid while anyone has them.

        Collective.
        """
        del keep
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
        ghosts = self.carrier.take((self.plan.num_ghosts, width), dtype, ghosts=True)
        return ghosts, self.carrier.take((self.plan.num_sent, width), dtype)


class _Fetch:
    def __init__(self, exchange: PlannedExchange, x: Array) -> None:
        carrier = exchange.carrier
        self._ghosts, self._packed = exchange.buffers(x)
        with exchange_span(
            exchange.trace, "exchange.forward", exchange.sent, self._packed, carrier
        ):
            rows, half = exchange.send_rows, exchange.wire.half
            carrier.memory.kernels.gather_rows(x, rows, self._packed, half=half)
            self._crossings = carrier.start(exchange.plan, self._packed, self._ghosts, forward=True)

    def stage(self, index: int) -> Array:
        assert index == 0
        for crossing in self._crossings:
            crossing.wait()
        return self._ghosts


class _Push:
    def __init__(self, exchange: PlannedExchange, like: Array, combine: Combine) -> None:
        self._exchange, self._combine = exchange, combine
        self._ghosts, self._arrived = exchange.buffers(like)
        self._crossings: tuple[Crossing, ...] | None = None

    def buffer(self, index: int) -> Array:
        assert index == 0
        return self._ghosts

    def send(self, index: int) -> None:
        assert index == 0
        exchange = self._exchange
        with exchange_span(
            exchange.trace, "exchange.reverse", exchange.received, self._ghosts, exchange.carrier
        ):
            self._crossings = exchange.carrier.start(
                exchange.plan, self._ghosts, self._arrived, forward=False
            )

    def finish(self) -> None:
        assert self._crossings is not None, "a push is finished before it is sent"
        exchange = self._exchange
        with exchange.trace.span("wait.reverse"):
            for crossing in self._crossings:
                crossing.wait()
        with exchange.trace.span("boundary.add"):
            for start, stop in exchange.plan.send_ranges:
                self._combine(exchange.send_rows[start:stop], self._arrived[start:stop])
