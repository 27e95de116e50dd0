"""Rows between GPUs by MPI, through host memory or directly from and to device memory.

A message can start only when the device has packed its rows. So messages are queued, and waiting
for one starts all queued ones: ranks start them in program order, however far their devices are.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, Union

from hpcgnn.comm import (
    CommPlan,
    Communicator,
    Stage,
    Transfer,
    allreduce_sum,
    start_broadcast,
    start_reduce,
)
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy
from hpcgnn.kernels.cuda.staging import Download, Upload, Uploads, empty_pinned
from hpcgnn.spmd import collective, neighborwise_collective
from hpcgnn.trace import TraceRecorder

_Begin: TypeAlias = Callable[[Any, Any], tuple[Transfer, Transfer]]
"""Starts the messages of two arrays, sent and received; collective if the messages are."""

_Move: TypeAlias = Union["_StagedMove", "_DirectMove"]
"""Messages by MPI, queued or under way."""


class StagedTransport:
    """Queued messages by MPI through page-locked host memory."""

    in_step = False

    def __init__(self) -> None:
        self._queue: deque[_Move] = deque()
        self._uploads = Uploads()

    @neighborwise_collective
    def start(
        self,
        plan: CommPlan,
        stage: Stage,
        sent: DeviceArray,
        received: DeviceArray,
        *,
        forward: bool,
    ) -> tuple[Transfer, Transfer]:
        begin = partial(plan.start_stage, stage, forward=forward)
        move = self._enqueue(begin, sent, received)
        return _End(self, move.end_sent), _End(self, move.end_received)

    @collective
    def start_broadcast(self, comm: Communicator, rows: DeviceArray, root: int) -> Transfer:
        if comm.rank == root:
            move = self._enqueue(
                lambda s, _: (start_broadcast(comm, s, root), Transfer()), rows, None
            )
            return _End(self, move.end_sent)
        move = self._enqueue(lambda _, r: (Transfer(), start_broadcast(comm, r, root)), None, rows)
        return _End(self, move.end_received)

    @collective
    def start_reduce(
        self, comm: Communicator, partial: DeviceArray, total: DeviceArray, root: int
    ) -> Transfer:
        move = self._enqueue(
            lambda s, r: (Transfer(), start_reduce(comm, s, r, root)),
            partial,
            total if comm.rank == root else None,
            adds=True,
        )
        return _End(self, move.end_received)

    @collective
    def combine(self, comm: Communicator, values: DeviceArray) -> None:
        def begin(sent: Any, received: Any) -> tuple[Transfer, Transfer]:
            if received is not sent:
                received[...] = sent
            allreduce_sum(comm, received)
            return Transfer(), Transfer()

        _End(self, self._enqueue(begin, values, values).end_received).wait()

    @neighborwise_collective
    def begin_all(self) -> None:
        """Start all queued messages."""
        while self._queue:
            self._queue.popleft().begin()

    def _enqueue(self, begin: _Begin, sent: Any, received: Any, *, adds: bool = False) -> _Move:
        move = self._make(begin, sent, received, adds=adds)
        self._queue.append(move)
        return move

    def _make(self, begin: _Begin, sent: Any, received: Any, *, adds: bool) -> _Move:
        """Return messages for the queue; `adds` tells whether MPI adds up the rows."""
        return _StagedMove(self._uploads, begin, sent, received)


class _End(Transfer):
    def __init__(self, transport: StagedTransport, end: Callable[[], None]) -> None:
        super().__init__()
        self._transport, self._end = transport, end

    def wait(self, trace: TraceRecorder | None = None) -> None:
        # Arrivals on a device are not traced.
        del trace
        self._transport.begin_all()
        self._end()


class _StagedMove:
    def __init__(self, uploads: Uploads, begin: _Begin, sent: Any, received: Any) -> None:
        self._uploads, self._begin, self._received = uploads, begin, received
        self._download = self._host = None
        if sent is not None:
            self._download = Download(sent, empty_pinned(sent.shape, sent.dtype))
        if received is not None:
            self._host = empty_pinned(received.shape, received.dtype)

    def begin(self) -> None:
        sent = None
        if self._download is not None:
            self._download.wait()
            sent = self._download.host
        self._transfers = self._begin(sent, self._host)

    def end_sent(self) -> None:
        self._transfers[0].wait()
        self._download = None

    def end_received(self) -> None:
        self._transfers[1].wait()
        if self._host is not None:
            self._uploads.hold(Upload(self._host, self._received))
            self._host = None


class DirectTransport(StagedTransport):
    """Messages directly from and to device memory, by an MPI library that supports it."""

    def _make(self, begin: _Begin, sent: Any, received: Any, *, adds: bool) -> _Move:
        # Libraries that support device memory may not support non-blocking reductions in it.
        if adds:
            return super()._make(begin, sent, received, adds=adds)
        return _DirectMove(begin, sent, received)


class _DirectMove:
    def __init__(self, begin: _Begin, sent: Any, received: Any) -> None:
        self._begin, self._rows = begin, (sent, received)
        self._packed: Any = load_cupy().cuda.Event()
        self._packed.record()

    def begin(self) -> None:
        # MPI ignores streams: the packing, and earlier uses of this memory, must be complete.
        self._packed.synchronize()
        self._transfers = self._begin(*self._rows)

    def end_sent(self) -> None:
        self._transfers[0].wait()

    def end_received(self) -> None:
        self._transfers[1].wait()
