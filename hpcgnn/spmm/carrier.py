"""Carriers: a memory that rows lie in, and the way of rows to the same memory of other ranks."""

from typing import Protocol

from numpy.typing import DTypeLike

from hpcgnn.comm import (
    CommPlan,
    LiveBytes,
    ProcessGrid,
    Stage,
    Transfer,
    start_broadcast,
    start_reduce,
)
from hpcgnn.sparse import MAIN, Memory
from hpcgnn.typing import Array

__all__ = ["Carrier", "Crossing", "HostCarrier", "Pool"]


class Crossing(Protocol):
    """Rows under way."""

    def wait(self) -> None:
        """Return when what is computed from now on may touch their array.

        Neighborwise collective.
        """
        ...


class Pool(Protocol):
    """Lends memory for rows, and counts those of other ranks' nodes."""

    @property
    def ghosts(self) -> LiveBytes:
        """The gauge of ghosts in memory."""
        ...

    def take(self, shape: tuple[int, ...], dtype: DTypeLike, *, ghosts: bool = False) -> Array:
        """Return an uninitialised C-contiguous array, see `BufferPool.take`."""
        ...


class Carrier(Pool, Protocol):
    """What a product needs of the place where its rows are.

    Messages are started in the same order on all ranks that they concern. An array must not be
    touched before its crossing has been waited for.
    """

    @property
    def memory(self) -> Memory:
        """Where rows and matrices are."""
        ...

    @property
    def in_step(self) -> bool:
        """Whether ranks must start the messages of one time together, by number of stage."""
        ...

    def start(
        self,
        plan: CommPlan,
        sent: Array,
        received: Array,
        *,
        forward: bool,
        stage: Stage | None = None,
    ) -> tuple[Crossing, Crossing]:
        """Start to move rows; return what is sent and what is received.

        Neighborwise collective.

        Parameters
        ----------
        plan
            Who sends how many rows to whom.
        sent, received
            (rows, width) of one dtype, C-contiguous: of owners and ghosts, or of ghosts and owners.
        forward
            Owner to ghost, or ghost to owner.
        stage
            Of the plan; None: everything.
        """
        ...

    def start_broadcast(self, rows: Array, root: int) -> Crossing:
        """Start to copy the rows of rank `root` of the layer to all ranks of it.

        Collective.
        """
        ...

    def start_reduce(self, partial: Array, total: Array, root: int) -> Crossing:
        """Start to sum over the layer into `total` on `root`; other ranks' `total` is unused.

        Collective.
        """
        ...

    def sum_over_replicas(self, partial: Array) -> None:
        """Replace an array by the sum over the replicas of this block row.

        Collective.
        """
        ...

    def max_over_replicas(self, values: Array) -> None:
        """Replace an array by the largest over the replicas of this block row.

        Collective.
        """
        ...


class HostCarrier:
    """Main memory, and MPI.

    Not collective.

    Parameters
    ----------
    grid
        The ranks; lends the memory.
    """

    memory = MAIN
    in_step = False

    def __init__(self, grid: ProcessGrid) -> None:
        self._grid = grid
        self.take = grid.buffers.take
        self.sum_over_replicas = grid.sum_over_replicas
        self.max_over_replicas = grid.max_over_replicas

    @property
    def ghosts(self) -> LiveBytes:
        """The gauge of ghosts in memory."""
        return self._grid.buffers.ghosts

    def start(
        self,
        plan: CommPlan,
        sent: Array,
        received: Array,
        *,
        forward: bool,
        stage: Stage | None = None,
    ) -> tuple[Crossing, Crossing]:
        """Start to move rows; see `Carrier`.

        Neighborwise collective.
        """
        if stage is None:
            whole = plan.start_forward if forward else plan.start_reverse
            return Transfer(), whole(sent, received)
        part = plan.start_stage_forward if forward else plan.start_stage_reverse
        return part(stage, sent, received)

    def start_broadcast(self, rows: Array, root: int) -> Crossing:
        """Start to copy rows to all ranks; see `Carrier`.

        Collective.
        """
        return start_broadcast(self._grid.layer, rows, root)

    def start_reduce(self, partial: Array, total: Array, root: int) -> Crossing:
        """Start to sum over the layer; see `Carrier`.

        Collective.
        """
        return start_reduce(self._grid.layer, partial, total, root)
