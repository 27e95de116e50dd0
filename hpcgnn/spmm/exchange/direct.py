"""The direct ghost exchange: owners send readers exactly the rows that they need.

A resident schedule is one stage, a neighbourhood all-to-all: Algorithm 1 of "Sparsity-Aware
Communication for Distributed Graph Neural Network Training". A sequential one is Algorithm 1 of
"Sequential Aggregation and Rematerialization": in the stage of shift s, rank r reads from rank
r + s and serves rank r - s, so each rank sends and receives one block. At most ``1 + prefetch``
blocks are in memory on the ghosts' side, and as many on the owners' side. The push goes through the
same stages in the other direction: sums for one peer are computed, sent and freed, and arriving
sums are combined stage by stage.
"""

from collections import deque
from collections.abc import Sequence

from numpy.typing import DTypeLike

from hpcgnn.comm import Request, RowMap, Stage, Transfer, Volume, shift_times
from hpcgnn.spmd import collective
from hpcgnn.spmm.exchange.ghosts import Channel
from hpcgnn.spmm.exchange.peers import Ghosts, LayerGhosts
from hpcgnn.spmm.exchange.route import Route
from hpcgnn.spmm.exchange.stages import (
    Combine,
    Slots,
    StageColumns,
    combine_stage,
)
from hpcgnn.spmm.schedule import refuse_to_keep
from hpcgnn.spmm.wire import Packing
from hpcgnn.typing import Array


def received_directly(layer: LayerGhosts) -> Sequence[Request]:
    """Return the rows that each rank receives, which are its own ghosts."""
    row_map = RowMap(layer.starts, 0)
    return [Request.of_owners(row_map, nodes) for nodes in layer.nodes]


class DirectExchange:
    """Fetches every ghost once from its owner; pushes one partial sum for every ghost."""

    @collective
    def __init__(self, channel: Channel, ghosts: Ghosts) -> None:
        grid, schedule, put = channel.grid, channel.schedule, channel.carrier.memory.put
        self.wire = self.push_wire = channel.wire
        self.carrier, self.trace = channel.carrier, channel.trace
        self.sequential = schedule.sequential
        self.plan = plan = channel.peers.plan_of_owners(ghosts, ghosts.nodes)
        self.stages: tuple[Stage, ...] = (plan.everything,)
        self.columns = StageColumns((plan.num_ghosts,))
        if schedule.sequential:
            # Messages that are matched by order alone need the same stages on all ranks.
            times = range(1, grid.num_blocks) if self.carrier.in_step else None
            shifts = shift_times(plan.peers, grid.block, grid.num_blocks)
            self.stages = plan.stages(*shifts, times)
            self.columns = StageColumns.of_stages([plan.ghosts_of(stage) for stage in self.stages])
        self.push_columns = self.columns
        self.window = schedule.window(len(self.stages))
        self.send_rows = put(plan.send_rows)
        # List the rows of each stage once, not in every product.
        self.rows = [put(plan.rows_of(stage)) for stage in self.stages]
        self.num_owned = [stage.num_owned for stage in self.stages]
        self.route = Route(channel, plan, self.stages, ghosts.ids_of(plan.send_rows))

    @collective
    def start_fetch(
        self, x: Array, *, keep: bool = False, columns: Packing | None = None
    ) -> "_DirectFetch":
        """Start the first stages; resident rows are valid as long as they are referenced."""
        refuse_to_keep(keep and self.sequential)
        return _DirectFetch(self, x, columns)

    @collective
    def start_push(
        self, like: Array, combine: Combine, columns: Packing | None = None
    ) -> "_DirectPush":
        """Prepare the return of partial sums; `send` starts each stage."""
        return _DirectPush(self, like, combine, columns)

    def volume(self) -> Volume:
        """Return the rows of one fetch."""
        return self.plan.volume()

    def slots(self, width: int, dtype: DTypeLike) -> tuple[Slots, Slots]:
        """Return the stages' buffers on the ghosts' side and on the owners' side."""
        sizes, owned = self.columns.widths, self.num_owned
        ghosts = Slots(self.carrier, sizes, self.window, width, dtype, ghosts=True)
        return ghosts, Slots(self.carrier, owned, self.window, width, dtype)


class _DirectFetch:
    def __init__(self, exchange: DirectExchange, x: Array, columns: Packing | None) -> None:
        self._exchange, self._columns = exchange, columns
        self._x: Array | None = x
        self._ghosts, self._packed = exchange.slots(x.shape[1], exchange.wire.dtype(x))
        self._sent: deque[Transfer] = deque()
        self._received: deque[Transfer] = deque()
        for index in range(exchange.window):
            self._start(index)

    def stage(self, index: int) -> Array:
        if index > 0:
            # The caller is done with the previous stage.
            self._sent.popleft().wait()
            self._start(index - 1 + self._exchange.window)
        self._received.popleft().wait(self._exchange.trace)
        if index == len(self._exchange.stages) - 1:
            while self._sent:
                self._sent.popleft().wait()
        return self._ghosts.rows(index)

    def _start(self, index: int) -> None:
        exchange, kernels = self._exchange, self._exchange.carrier.memory.kernels
        if index >= len(exchange.stages):
            return
        # The slots are free: the stage that used them, one window back, has been multiplied and its
        # messages have been sent.
        packed, ghosts = self._packed.rows(index), self._ghosts.rows(index)
        columns = self._columns
        with exchange.route.span(index, packed, columns, forward=True):
            kernels.gather_rows(self._x, exchange.rows[index], packed, half=exchange.wire.half)
            sent, received = exchange.route.start(index, packed, ghosts, columns, forward=True)
        self._sent.append(sent)
        self._received.append(received)
        if index == len(exchange.stages) - 1:
            # All rows are packed, so the input may be freed.
            self._x = None


class _DirectPush:
    def __init__(
        self, exchange: DirectExchange, like: Array, combine: Combine, columns: Packing | None
    ) -> None:
        self._exchange, self._combine, self._columns = exchange, combine, columns
        self._width, self._dtype = like.shape[1], exchange.wire.dtype(like)
        self._under_way: deque[tuple[int, Transfer, Transfer]] = deque()
        self._partial: Slots | None = None

    def buffer(self, index: int) -> Array:
        exchange = self._exchange
        if self._partial is None:
            # Allocate late: until now the ghosts of a fetch may be in memory.
            self._partial, self._arrived = exchange.slots(self._width, self._dtype)
        # This overwrites the buffer of the stage one window back, whose message must have been
        # sent; what that stage receives may still be under way.
        if index >= exchange.window:
            _, sent, _ = self._under_way[0]
            with exchange.trace.span("wait.reverse"):
                sent.wait()
        return self._partial.rows(index)

    def send(self, index: int) -> None:
        exchange = self._exchange
        assert self._partial is not None, "a stage must be filled before it is sent"
        # Arrivals share slots too. They are combined in stage order, whatever order they arrive in,
        # so that equal runs give equal bits.
        if index >= exchange.window:
            self._combine_next()
        partial, arrived = self._partial.rows(index), self._arrived.rows(index)
        columns = self._columns
        with exchange.route.span(index, partial, columns, forward=False):
            sent, received = exchange.route.start(index, partial, arrived, columns, forward=False)
        self._under_way.append((index, sent, received))

    def finish(self) -> None:
        while self._under_way:
            self._combine_next()

    def _combine_next(self) -> None:
        exchange = self._exchange
        index, sent, received = self._under_way.popleft()
        with exchange.trace.span("wait.reverse"):
            # Sending may have to wait for the reader; do not count that as waiting for arrivals.
            received.wait(exchange.trace)
            sent.wait()
        with exchange.trace.span("boundary.add"):
            stage, arrived = exchange.stages[index], self._arrived.rows(index)
            combine_stage(exchange.send_rows, stage, arrived, self._combine)
