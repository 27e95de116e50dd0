"""A carrier: the memory that rows lie in, and the transport of messages between such memories."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.comm import (
    CommPlan,
    Communicator,
    JoinedMessages,
    ProcessGrid,
    Stage,
    Transfer,
    allreduce_sum,
    start_broadcast,
    start_reduce,
)
from hpcgnn.sparse import MAIN, Memory
from hpcgnn.spmd import collective, neighborwise_collective
from hpcgnn.typing import Array


class Transport(Protocol):
    """A way between the memories of ranks; rows are sent when the work issued so far is done.

    A transport serves all exchanges of a run.
    """

    in_step: bool
    """Whether ranks must start the messages of one time together, by number of stage."""

    def start(
        self, plan: CommPlan, stage: Stage, sent: Array, received: Array, *, forward: bool
    ) -> tuple[Transfer, Transfer]:
        """Start to move the rows of a stage, see `Carrier.start`; neighborwise collective."""

    def start_broadcast(self, comm: Communicator, rows: Array, root: int, /) -> Transfer:
        """Start to copy the rows of `root` to all ranks; collective."""

    def start_reduce(
        self, comm: Communicator, partial: Array, total: Array, root: int, /
    ) -> Transfer:
        """Start to sum into `total` on `root`; collective."""

    def combine(self, comm: Communicator, values: Array, /) -> None:
        """Replace an array by its sum over the ranks; collective."""


class MpiTransport:
    """MPI, from and to main memory."""

    in_step = False

    @neighborwise_collective
    def start(
        self, plan: CommPlan, stage: Stage, sent: Array, received: Array, *, forward: bool
    ) -> tuple[Transfer, Transfer]:
        return plan.start_stage(stage, sent, received, forward=forward)

    start_broadcast = staticmethod(start_broadcast)
    start_reduce = staticmethod(start_reduce)
    combine = staticmethod(allreduce_sum)


_MPI = MpiTransport()


class Carrier:
    """What a product needs of the place where its rows are.

    Messages are started in the same order on all ranks that they concern. An array must not be
    touched before its transfer has been waited for. `grid` lends main memory, and counts the rows
    of other ranks' nodes.
    """

    def __init__(
        self, grid: ProcessGrid, memory: Memory = MAIN, transport: Transport = _MPI
    ) -> None:
        self._grid, self._transport = grid, transport
        self.memory, self.in_step = memory, transport.in_step
        self.ghosts = grid.buffers.ghosts
        self._joined: JoinedMessages | None = None

    def on(self, grid: ProcessGrid) -> "Carrier":
        """Return a carrier of the same memory and transport for another grid."""
        return Carrier(grid, self.memory, self._transport)

    def take(self, shape: tuple[int, ...], dtype: DTypeLike, *, ghosts: bool = False) -> Array:
        """Return an uninitialised C-contiguous array, see `BufferPool.take`."""
        if self.memory is MAIN:
            return self._grid.buffers.take(shape, dtype, ghosts=ghosts)
        # The library of a device keeps a pool of its own.
        buffer = self.memory.empty(shape, dtype)
        if ghosts:
            self.ghosts.hold(buffer, math.prod(shape) * np.dtype(dtype).itemsize)
        return buffer

    @property
    def joined_row_bytes(self) -> int:
        """Bytes of a row of the first of two exchanges that are joined now; 0: none are."""
        return 0 if self._joined is None else self._joined.row_bytes

    @contextmanager
    def joining(self, first: CommPlan, second: CommPlan, row_bytes: int) -> Iterator[None]:
        """Start two whole exchanges inside, with their short messages to a rank as one.

        The `first` goes owner to ghost, its rows of `row_bytes` on their way, the `second` ghost to
        owner; they start in this order, and neither is waited for inside.
        """
        self._joined = JoinedMessages(first, second, row_bytes)
        try:
            yield
        finally:
            self._joined = None

    @neighborwise_collective
    def start(
        self, plan: CommPlan, stage: Stage, sent: Array, received: Array, *, forward: bool
    ) -> tuple[Transfer, Transfer]:
        """Start to move rows; return the transfers of what is sent and of what is received.

        `sent` and `received` (rows, width) are of one dtype and C-contiguous. `forward` is from
        owner to ghost.
        """
        if self._joined is not None and isinstance(self._transport, MpiTransport):
            assert stage.is_whole, "what is joined is whole"
            going, coming = self._joined.start(plan, stage, sent, received, forward=forward)
        elif len(plan.peers) == 0:
            # A lone rank's host must not wait for its device.
            return Transfer(), Transfer()
        else:
            going, coming = self._transport.start(plan, stage, sent, received, forward=forward)
        self._grid.progress.keep(going, sent.nbytes)
        self._grid.progress.keep(coming, received.nbytes)
        return going, coming

    @collective
    def start_broadcast(self, rows: Array, root: int) -> Transfer:
        """Start to copy the rows of rank `root` of the layer to all ranks of it."""
        if self._grid.num_blocks == 1:
            return Transfer()
        transfer = self._transport.start_broadcast(self._grid.layer, rows, root)
        self._grid.progress.keep(transfer, rows.nbytes)
        return transfer

    @collective
    def start_reduce(self, partial: Array, total: Array, root: int) -> Transfer:
        """Start to sum over the layer into `total` on `root`; other ranks' `total` is unused."""
        transfer = self._transport.start_reduce(self._grid.layer, partial, total, root)
        self._grid.progress.keep(transfer, partial.nbytes)
        return transfer

    @collective
    def sum_over_replicas(self, partial: Array) -> None:
        """Replace an array without rows, such as a weight's gradient, by its sum over replicas."""
        if self._grid.replication > 1:
            self._transport.combine(self._grid.replicas, partial)
