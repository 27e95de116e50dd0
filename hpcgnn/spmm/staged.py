"""The direct ghost exchange peer by peer: the sequential schedule of `PlannedExchange`.

Algorithm 1 of "Sequential Aggregation and Rematerialization": at the stage of shift s a rank reads
from rank r + s and serves rank r - s, so that each is the sender and the receiver of one block. At
most ``1 + prefetch`` blocks are in memory on the side of the ghosts, and as many on the side of the
owner. The push is the same walk the other way: sums for one peer are computed, sent and freed, and
what arrives is combined stage by stage.
"""

from collections import deque

import numpy as np

from hpcgnn.comm import ProcessGrid, Volume, shift_times
from hpcgnn.sparse import LocalCSR
from hpcgnn.spmm.carrier import Carrier, Crossing
from hpcgnn.spmm.ghosts import Combine, Ghosts, Wire
from hpcgnn.spmm.schedule import Schedule, refuse_to_keep
from hpcgnn.spmm.slots import Slots, combine_stage, split_columns
from hpcgnn.spmm.spans import Moved, exchange_span, world_ranks
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, LocalIndices

__all__ = ["StagedExchange"]


class StagedExchange:
    """Fetch ghosts owner by owner; push partial sums owner by owner.

    Collective.

    Parameters
    ----------
    grid, ghosts, wire, trace
        As for `PlannedExchange`.
    schedule
        Sequential, with its depth of prefetch.
    carrier
        Where the rows are.
    """

    sequential = True

    def __init__(
        self,
        grid: ProcessGrid,
        ghosts: Ghosts,
        wire: Wire,
        trace: TraceRecorder,
        schedule: Schedule,
        carrier: Carrier,
    ) -> None:
        self.wire, self.trace = wire, trace
        self.carrier = carrier
        plan, put = ghosts.make_plan(grid), self.carrier.memory.put
        self.plan, self.send_rows = plan, put(plan.send_rows)
        times = range(1, grid.num_blocks) if self.carrier.in_step else None
        self.stages = plan.stages(*shift_times(plan.peers, grid.block, grid.num_blocks), times)
        self.window = schedule.window(len(self.stages))
        self.rows = [put(plan.rows_of(stage)) for stage in self.stages]
        self.num_ghosts = [stage.num_ghosts for stage in self.stages]
        self.num_owned = [stage.num_owned for stage in self.stages]
        ranks = world_ranks(grid)
        self.sent = [Moved.of_messages(stage.owned, ranks) for stage in self.stages]
        self.received = [Moved.of_messages(stage.ghosts, ranks) for stage in self.stages]

    def split(self, block: LocalCSR) -> tuple[LocalCSR, ...]:
        """Return a block for each stage; columns are its ghosts.

        Not collective.
        """
        stages, columns = np.zeros((2, self.plan.num_ghosts), np.int32)
        for index in range(len(self.stages)):
            ghosts = self.ghosts_of(index)
            stages[ghosts] = index
            columns[ghosts] = np.arange(len(ghosts))
        return split_columns(block, stages, columns, self.num_ghosts)

    def split_push(self, block: LocalCSR) -> None:
        """Return None: a push has the stages of a fetch.

        Not collective.
        """

    def ghosts_of(self, index: int) -> LocalIndices:
        """Return the ghosts of a stage in order.

        Not collective.
        """
        return self.plan.ghosts_of(self.stages[index])

    push_ghosts_of = ghosts_of

    def start_fetch(self, x: Array, *, keep: bool = False) -> "_Fetch":
        """Start the first stages.

        Collective.
        """
        refuse_to_keep(keep)
        return _Fetch(self, x)

    def start_push(self, like: Array, combine: Combine, *, additive: bool = False) -> "_Push":
        """Prepare the return of partial sums.

        Collective.
        """
        del additive
        return _Push(self, like, combine)

    def volume(self) -> Volume:
        """Return the rows of one fetch.

        Not collective.
        """
        return self.plan.volume()


class _Fetch:
    def __init__(self, exchange: StagedExchange, x: Array) -> None:
        self._exchange, self._x = exchange, x
        width, dtype, window = x.shape[1], exchange.wire.dtype(x), exchange.window
        pool, sizes = exchange.carrier, exchange.num_ghosts
        self._ghosts = Slots(pool, sizes, window, width, dtype, ghosts=True)
        self._packed = Slots(pool, exchange.num_owned, window, width, dtype)
        self._sent: deque[Crossing] = deque()
        self._received: deque[Crossing] = deque()
        for index in range(window):
            self._start(index)

    def stage(self, index: int) -> Array:
        if index > 0:
            # The caller is done with the stage before.
            self._sent.popleft().wait()
            self._start(index - 1 + self._exchange.window)
        self._received.popleft().wait()
        if index == len(self._exchange.stages) - 1:
            while self._sent:
                self._sent.popleft().wait()
        return self._ghosts.rows(index)

    def _start(self, index: int) -> None:
        exchange, carrier = self._exchange, self._exchange.carrier
        if index >= len(exchange.stages):
            return
        packed, ghosts = self._packed.rows(index), self._ghosts.rows(index)
        with exchange_span(
            exchange.trace, "exchange.forward", exchange.sent[index], packed, carrier
        ):
            rows, half = exchange.rows[index], exchange.wire.half
            carrier.memory.kernels.gather_rows(self._x, rows, packed, half=half)
            sent, received = carrier.start(
                exchange.plan, packed, ghosts, forward=True, stage=exchange.stages[index]
            )
        self._sent.append(sent)
        self._received.append(received)


class _Push:
    def __init__(self, exchange: StagedExchange, like: Array, combine: Combine) -> None:
        self._exchange, self._combine = exchange, combine
        self._width, self._dtype = like.shape[1], exchange.wire.dtype(like)
        self._sent: deque[Crossing] = deque()
        self._received: deque[tuple[int, Crossing]] = deque()
        self._partial: Slots | None = None

    def buffer(self, index: int) -> Array:
        if self._partial is None:
            # Not before: until now the ghosts of a fetch may be in memory.
            self._partial = self._slots(self._exchange.num_ghosts, ghosts=True)
            self._arrived = self._slots(self._exchange.num_owned, ghosts=False)
        if index >= self._exchange.window:
            with self._exchange.trace.span("wait.reverse"):
                self._sent.popleft().wait()
        return self._partial.rows(index)

    def send(self, index: int) -> None:
        exchange = self._exchange
        assert self._partial is not None, "a stage is filled before it is sent"
        if index >= exchange.window:
            self._combine_next()
        partial, arrived = self._partial.rows(index), self._arrived.rows(index)
        with exchange_span(
            exchange.trace, "exchange.reverse", exchange.received[index], partial, exchange.carrier
        ):
            sent, received = exchange.carrier.start(
                exchange.plan, partial, arrived, forward=False, stage=exchange.stages[index]
            )
        self._sent.append(sent)
        self._received.append((index, received))

    def finish(self) -> None:
        while self._received:
            self._combine_next()
        with self._exchange.trace.span("wait.reverse"):
            while self._sent:
                self._sent.popleft().wait()

    def _combine_next(self) -> None:
        index, received = self._received.popleft()
        with self._exchange.trace.span("wait.reverse"):
            received.wait()
        rows, stage = self._exchange.send_rows, self._exchange.stages[index]
        with self._exchange.trace.span("boundary.add"):
            combine_stage(rows, stage, self._arrived.rows(index), self._combine)

    def _slots(self, sizes: list[int], *, ghosts: bool) -> Slots:
        exchange = self._exchange
        return Slots(
            exchange.carrier, sizes, exchange.window, self._width, self._dtype, ghosts=ghosts
        )
