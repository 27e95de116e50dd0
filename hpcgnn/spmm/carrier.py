"""Carriers: the memory that holds rows, and the transport of messages between such memories."""

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
    """A way to send rows between the memories of ranks, after the work issued so far is done.

    A transport serves all exchanges of a run.
    """

    in_step: bool
    """Whether all ranks must have the same stages, because messages are matched by order alone."""

    def start(
        self, plan: CommPlan, stage: Stage, sent: Array, received: Array, *, forward: bool
    ) -> tuple[Transfer, Transfer]:
        """Start to move the rows of a stage; see `Carrier.start`. Neighborwise collective."""

    def start_broadcast(self, comm: Communicator, rows: Array, root: int, /) -> Transfer:
        """Start to copy the rows of `root` to all ranks. Collective."""

    def start_reduce(
        self, comm: Communicator, partial: Array, total: Array, root: int, /
    ) -> Transfer:
        """Start to sum `partial` over ranks into `total` on `root`. Collective."""

    def combine(self, comm: Communicator, values: Array, /) -> None:
        """Replace an array by its sum over the ranks. Collective."""


class MpiTransport:
    """Messages by MPI from and to main memory."""

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
    """The memory and the messages of products.

    Messages start in the same order on all ranks involved. An array must not be touched before its
    transfer has been waited for. `grid` lends main memory and counts the rows of other ranks'
    nodes.
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
        """Return an uninitialised C-contiguous array; see `BufferPool.take`."""
        if self.memory is MAIN:
            return self._grid.buffers.take(shape, dtype, ghosts=ghosts)
        # CuPy has its own memory pool.
        buffer = self.memory.empty(shape, dtype)
        if ghosts:
            self.ghosts.hold(buffer, math.prod(shape) * np.dtype(dtype).itemsize)
        return buffer

    @property
    def joined_row_bytes(self) -> int:
        """Bytes of a row of the first of the two exchanges being joined; 0 outside `joining`."""
        return 0 if self._joined is None else self._joined.row_bytes

    @contextmanager
    def joining(self, first: CommPlan, second: CommPlan, row_bytes: int) -> Iterator[None]:
        """Join the short messages to a rank of two whole exchanges that start inside the block.

        They start in this order: `first` from owners to ghosts, with `row_bytes` a row on the wire,
        `second` from ghosts to owners. Neither may be waited for inside the block.
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
        """Start to move rows; return the transfers of `sent` and of `received`.

        Both are (rows, width), of one dtype and C-contiguous. `forward` is from owner to ghost.
        """
        if self._joined is not None and isinstance(self._transport, MpiTransport):
            assert stage.is_whole, "only whole exchanges can be joined"
            going, coming = self._joined.start(plan, stage, sent, received, forward=forward)
        elif len(plan.peers) == 0:
            # Without messages, the host must not wait for its device.
            return Transfer(), Transfer()
        else:
            going, coming = self._transport.start(plan, stage, sent, received, forward=forward)
        self._grid.progress.keep(going, sent.nbytes)
        self._grid.progress.keep(coming, received.nbytes)
        return going, coming

    @collective
    def start_broadcast(self, rows: Array, root: int) -> Transfer:
        """Start to copy the rows of rank `root` of the layer to all its ranks."""
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
        """Replace an array that is not divided into rows, as a gradient, by its replicas' sum."""
        if self._grid.replication > 1:
            self._transport.combine(self._grid.replicas, partial)
