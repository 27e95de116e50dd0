"""The direct ghost exchange between GPUs: rows are packed and added on the device.

How they get from one device to the other is a `Transport`.
"""

from hpcgnn.comm import CommPlan, ProcessGrid, Volume
from hpcgnn.kernels import cuda
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy
from hpcgnn.sparse import DistCSR
from hpcgnn.spmm.ghosts import Wire
from hpcgnn.spmm.spans import Moved, exchange_span, world_ranks
from hpcgnn.spmm.transports import Crossing, Transport
from hpcgnn.trace import TraceRecorder

__all__ = ["Arriving", "DeviceExchange"]


class DeviceExchange:
    """Fetches every ghost of a pattern once, and returns one sum for each.

    Collective.

    Matrices of one pattern share it.

    Parameters
    ----------
    grid
        The ranks, without replication.
    pattern
        This rank's block row, with any values.
    wire
        How numbers travel: native or bfloat16.
    transport
        Moves the packed rows.
    trace
        Where rows, bytes and times are recorded; times of what the device does are of issuing it.

    Raises
    ------
    ValueError
        A grid with replication, or a wire format that no product on the device reads.
    """

    def __init__(
        self,
        grid: ProcessGrid,
        pattern: DistCSR,
        wire: Wire,
        transport: Transport,
        trace: TraceRecorder,
    ) -> None:
        if grid.replication != 1 or wire.half == "float16":
            raise ValueError("products on GPUs take no replication and no float16 on the wire")
        self.wire, self.trace = wire, trace
        positions = pattern.column_positions()
        self.plan = CommPlan.from_ghosts(grid, pattern.row_map, pattern.ghosts, positions)
        self._transport, self._pool = transport, grid.buffers
        self._send_rows = load_cupy().asarray(self.plan.send_rows)
        volume, ranks = self.plan.volume(), world_ranks(grid)
        self._sent = Moved.of_counts(volume.sent, ranks)
        self._received = Moved.of_counts(volume.received, ranks)

    def volume(self) -> Volume:
        """Return the rows of one fetch; a push moves them back.

        Not collective.
        """
        return self.plan.volume()

    def start_fetch(self, x: DeviceArray) -> "Arriving":
        """Pack rows of `x` (columns, width) and start to fetch the ghosts'.

        Neighborwise collective.
        """
        packed, ghosts = self._buffer(self.plan.num_sent, x), self.ghost_rows(x)
        with exchange_span(self.trace, "exchange.forward", self._sent, packed, self._pool):
            cuda.gather_rows(x, self._send_rows, packed, half=self.wire.half)
            crossing = self._start(packed, ghosts, forward=True)
        return Arriving(crossing, ghosts, self.trace, "wait.forward")

    def start_push(self, sums: DeviceArray) -> "Arriving":
        """Start to return a row for each ghost, (ghosts, width) as `ghost_rows` makes them.

        Neighborwise collective.
        """
        arrived = load_cupy().empty((self.plan.num_sent, sums.shape[1]), sums.dtype)
        with exchange_span(self.trace, "exchange.reverse", self._received, sums, self._pool):
            crossing = self._start(sums, arrived, forward=False)
        return Arriving(crossing, arrived, self.trace, "wait.reverse")

    def add(self, arrived: DeviceArray, out: DeviceArray) -> None:
        """Add what other ranks pushed to the rows of `out` (columns, width).

        Not collective.
        """
        with self.trace.span("boundary.add"):
            cuda.scatter_add_rows(arrived, self._send_rows, out, half=self.wire.half)

    def ghost_rows(self, like: DeviceArray) -> DeviceArray:
        """Return an uninitialised row for each ghost, as wide as `like`, in the wire's dtype.

        Not collective.
        """
        return self._buffer(self.plan.num_ghosts, like)

    def _start(self, sent: DeviceArray, received: DeviceArray, *, forward: bool) -> Crossing | None:
        # Without peers nothing travels: a lone rank's host must not wait for its device.
        if len(self.plan.peers) == 0:
            return None
        return self._transport.start(self.plan, sent, received, forward=forward)

    def _buffer(self, num_rows: int, like: DeviceArray) -> DeviceArray:
        return load_cupy().empty((num_rows, like.shape[1]), self.wire.dtype(like))


class Arriving:
    """Rows on their way to this device.

    Not collective.

    Parameters
    ----------
    crossing
        The messages; None: there are none.
    rows
        Where they go.
    trace, span
        What records the wait.
    """

    def __init__(
        self, crossing: Crossing | None, rows: DeviceArray, trace: TraceRecorder, span: str
    ) -> None:
        self._crossing, self._rows, self._trace, self._span = crossing, rows, trace, span

    def rows(self) -> DeviceArray:
        """Return the rows; work that is issued from now on reads them.

        Neighborwise collective.
        """
        if self._crossing is not None:
            with self._trace.span(self._span):
                self._crossing.wait()
        return self._rows
