"""The direct ghost exchange: exactly the rows that are needed, from their owner to their reader.

A resident schedule is one stage, one neighbourhood all-to-all: Algorithm 1 of "Sparsity-Aware
Communication for Distributed Graph Neural Network Training". A sequential one is Algorithm 1 of
"Sequential Aggregation and Rematerialization": at the stage of shift s a rank reads from rank r + s
and serves rank r - s, so that each is the sender and the receiver of one block. At most ``1 +
prefetch`` blocks are in memory on the side of the ghosts, and as many on the side of the owner. The
push is the same walk the other way: sums for one peer are computed, sent and freed, and what
arrives is combined stage by stage.
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
    """Return what each rank receives: its own ghosts."""
    row_map = RowMap(layer.starts, 0)
    return [Request.of_owners(row_map, nodes) for nodes in layer.nodes]


class DirectExchange:
    """Fetch every ghost once from its owner; push one partial sum for every ghost."""

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
            # Messages that match by their order alone need the same stages on all ranks.
            times = range(1, grid.num_blocks) if self.carrier.in_step else None
            shifts = shift_times(plan.peers, grid.block, grid.num_blocks)
            self.stages = plan.stages(*shifts, times)
            self.columns = StageColumns.of_stages([plan.ghosts_of(stage) for stage in self.stages])
        self.push_columns = self.columns
        self.window = schedule.window(len(self.stages))
        self.send_rows = put(plan.send_rows)
        # Rows to pack are listed stage by stage once: a list cut up in every product would be made
        # as often as rows are sent.
        self.rows = [put(plan.rows_of(stage)) for stage in self.stages]
        self.num_owned = [stage.num_owned for stage in self.stages]
        self.route = Route(channel, plan, self.stages, ghosts.ids_of(plan.send_rows))

    @collective
    def start_fetch(
        self, x: Array, *, keep: bool = False, columns: Packing | None = None
    ) -> "_DirectFetch":
        """Start the first stages; resident rows are valid while anyone has them."""
        refuse_to_keep(keep and self.sequential)
        return _DirectFetch(self, x, columns)

    @collective
    def start_push(
        self, like: Array, combine: Combine, columns: Packing | None = None
    ) -> "_DirectPush":
        """Prepare the return of partial sums; each stage starts with `send`."""
        return _DirectPush(self, like, combine, columns)

    def volume(self) -> Volume:
        """Return the rows of one fetch."""
        return self.plan.volume()

    def slots(self, width: int, dtype: DTypeLike) -> tuple[Slots, Slots]:
        """Return the buffers of the ghosts and of the owner's side, stage by stage."""
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
            # The caller is done with the stage before.
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
        # The slots are free: the stage that had them is one window back, its rows are multiplied
        # and its messages have left.
        packed, ghosts = self._packed.rows(index), self._ghosts.rows(index)
        columns = self._columns
        with exchange.route.span(index, packed, columns, forward=True):
            kernels.gather_rows(self._x, exchange.rows[index], packed, half=exchange.wire.half)
            sent, received = exchange.route.start(index, packed, ghosts, columns, forward=True)
        self._sent.append(sent)
        self._received.append(received)
        if index == len(exchange.stages) - 1:
            # All of it is packed: rows that were made to be fetched may go.
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
            # Not before: until now the ghosts of a fetch may be in memory.
            self._partial, self._arrived = exchange.slots(self._width, self._dtype)
        # The buffer of the stage one window back is written again, so its message must have left;
        # what that stage receives may still be on its way.
        if index >= exchange.window:
            _, sent, _ = self._under_way[0]
            with exchange.trace.span("wait.reverse"):
                sent.wait()
        return self._partial.rows(index)

    def send(self, index: int) -> None:
        exchange = self._exchange
        assert self._partial is not None, "a stage is filled before it is sent"
        # Arrivals share slots too, and are taken in by the order of stages and not of arrival:
        # equal runs give equal bits.
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
            # What is sent may have to wait for its reader: it must not hide what had arrived.
            received.wait(exchange.trace)
            sent.wait()
        with exchange.trace.span("boundary.add"):
            stage, arrived = exchange.stages[index], self._arrived.rows(index)
            combine_stage(exchange.send_rows, stage, arrived, self._combine)
