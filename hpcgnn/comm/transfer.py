"""Pending communication, and sums and maxima over ranks of arrays of any size.

MPI counts end at 2^31 and reductions accept no datatype for rows, so long arrays go in pieces.
"""

import threading
from collections.abc import Iterator, Sequence
from time import perf_counter_ns

import numpy as np

from hpcgnn.comm.mpi import MPI, Communicator
from hpcgnn.spmd import collective, neighborwise_collective
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array


class Transfer:
    """Messages under way; their buffers must not be touched before `wait` has returned.

    `sizes` are the bytes that each request receives; empty if none receives any.
    """

    def __init__(self, requests: Sequence["MPI.Request"] = (), sizes: Sequence[int] = ()) -> None:
        self._requests, self._sizes = list(requests), sizes
        self._start_ns = perf_counter_ns()
        self._ended_ns: int | None = None
        self._fault: MPI.Exception | None = None
        # MPI forbids two threads to test or wait for one request at once.
        self._lock = threading.Lock()
        self.before: Transfer | None = None
        """A transfer to wait for first, since some of its messages also carry rows of this one."""
        self.holds: object = None
        """An object that must live until the messages have completed."""
        self.num_joined = 0
        """Number of messages of this transfer that travel in messages of `before`."""

    def __add__(self, other: "Transfer") -> "Transfer":
        """Return a transfer of the messages of both, which reports no sizes."""
        return Transfer(self._requests + other._requests)

    def add(self, request: "MPI.Request", size: int) -> None:
        """Add a message, which receives `size` bytes."""
        with self._lock:
            self._requests.append(request)
            self._ended_ns = None
            if size:
                self._sizes = [*self._sizes, size]

    @property
    def has_ended(self) -> bool:
        """Whether there is nothing to wait for."""
        return not self._requests

    @property
    def is_there(self) -> bool:
        """Whether `move` found that all messages have completed."""
        return self._ended_ns is not None

    @neighborwise_collective
    def wait(self, trace: TraceRecorder | None = None) -> None:
        """Wait until all messages have completed; waiting again returns at once.

        Adds to the innermost open span of `trace`: the received `awaited_bytes`; `arrived_bytes`,
        the part that was complete when the wait began; `moving_ns`, from the start until `move` saw
        everything complete, if it did; and `waited_ns`.
        """
        if self.before is not None:
            self.before.wait(trace)
        with self._lock:
            if self._fault is not None:
                raise self._fault
            start_ns, arrived = perf_counter_ns(), self._arrived_bytes() if self._sizes else 0
            MPI.Request.Waitall(self._requests)
            self._requests, self.holds = [], None
        if trace is not None and self._sizes:
            progress = {"awaited_bytes": sum(self._sizes), "arrived_bytes": arrived}
            if self._ended_ns is not None:
                progress["moving_ns"] = self._ended_ns - self._start_ns
            trace.note(**progress, waited_ns=perf_counter_ns() - start_ns)
            self._sizes = ()

    def move(self) -> bool:
        """Let MPI make progress; return whether calling again can still help."""
        if not self._lock.acquire(blocking=False):
            # Another thread waits for the messages, which makes progress too.
            return False
        try:
            if self._requests and MPI.Request.Testall(self._requests):
                self._ended_ns = perf_counter_ns()
            return bool(self._requests) and not self.is_there
        except MPI.Exception as fault:
            # `wait` raises it.
            self._fault = fault
            return False
        finally:
            self._lock.release()

    def _arrived_bytes(self) -> int:
        # A call reads a little from each socket and may complete nothing although more has arrived,
        # so stop only after several calls in a row that complete nothing.
        left = _LOOKS
        while left:
            left = _LOOKS if MPI.Request.Testsome(self._requests) else left - 1
        sized = zip(self._requests, self._sizes, strict=True)
        return sum(size for request, size in sized if request == MPI.REQUEST_NULL)


_LOOKS = 4
_MAX_COUNT = 2**30


@collective
def allreduce_sum(comm: "MPI.Comm", values: Array) -> None:
    """Replace `values` (C-contiguous, any shape) by its sum over the ranks of `comm`."""
    _combine(comm, values, MPI.SUM)


@collective
def allreduce_max(comm: "MPI.Comm", values: Array) -> None:
    """Replace `values` (C-contiguous, any shape) by its maximum over the ranks of `comm`."""
    _combine(comm, values, MPI.MAX)


@collective
def allreduce_xor(comm: "MPI.Comm", values: Array) -> None:
    """Replace `values` (C-contiguous, any shape) by its exclusive or over the ranks of `comm`."""
    _combine(comm, values, MPI.BXOR)


@collective
def exclusive_sum(comm: Communicator, values: Array) -> Array:
    """Return, like `values` (C-contiguous, any shape), its sum over the ranks before this one."""
    before = np.zeros_like(values)
    for piece, result in _pieces(values, before):
        comm.Exscan(piece, result, op=MPI.SUM)
    if comm.rank == 0:
        # MPI leaves the result of the first rank undefined.
        before[...] = 0
    return before


@collective
def start_reduce(comm: Communicator, values: Array, total: Array, root: int) -> Transfer:
    """Start to sum `values` over ranks into `total` on `root`; other ranks' `total` is unused."""
    if comm.rank == root:
        return Transfer(
            [
                comm.Ireduce(piece, result, op=MPI.SUM, root=root)
                for piece, result in _pieces(values, total)
            ]
        )
    return Transfer(
        [comm.Ireduce(piece, None, op=MPI.SUM, root=root) for (piece,) in _pieces(values)]
    )


@collective
def start_broadcast(comm: Communicator, values: Array, root: int) -> Transfer:
    """Start to copy `values` (C-contiguous, any shape) from `root` to all ranks."""
    pieces = [piece for (piece,) in _pieces(values)]
    sizes = [] if comm.rank == root else [piece.nbytes for piece in pieces]
    return Transfer([comm.Ibcast(piece, root=root) for piece in pieces], sizes)


def _combine(comm: "MPI.Comm", values: Array, op: "MPI.Op") -> None:
    if comm.size > 1:
        for (piece,) in _pieces(values):
            comm.Allreduce(MPI.IN_PLACE, piece, op=op)


def _pieces(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, len(flat[0]), _MAX_COUNT):
        yield tuple(array[start : start + _MAX_COUNT] for array in flat)


@collective
def sum_over_ranks(comm: "MPI.Comm", numbers: Sequence[float]) -> list[float]:
    """Return the sums of a few numbers over the ranks of `comm`, in float64."""
    if comm.size == 1:
        return [float(number) for number in numbers]
    sums = np.array(numbers, np.float64)
    comm.Allreduce(MPI.IN_PLACE, sums, op=MPI.SUM)
    return sums.tolist()
