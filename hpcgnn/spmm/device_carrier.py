"""The carrier of GPUs: arrays of the current device, and a transport between devices."""

import math

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.comm import CommPlan, LiveBytes, ProcessGrid, Stage, Transfer
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy
from hpcgnn.kernels.cuda.group_size import PAPER_RULE, GroupRule
from hpcgnn.sparse.device import DeviceMemory
from hpcgnn.spmm.carrier import Crossing
from hpcgnn.spmm.transports import Transport

__all__ = ["DeviceCarrier"]


class DeviceCarrier:
    """Rows in the memory of the current device; a `Carrier`.

    Not collective.

    Parameters
    ----------
    grid
        The ranks.
    transport
        Moves rows between devices.
    rule
        Chooses the size of the neighbour groups of products.
    """

    def __init__(
        self, grid: ProcessGrid, transport: Transport, rule: GroupRule = PAPER_RULE
    ) -> None:
        self._grid, self._transport = grid, transport
        self.memory, self.in_step = DeviceMemory(rule), transport.in_step

    @property
    def ghosts(self) -> LiveBytes:
        """The gauge of ghosts in memory."""
        return self._grid.buffers.ghosts

    def take(
        self, shape: tuple[int, ...], dtype: DTypeLike, *, ghosts: bool = False
    ) -> DeviceArray:
        """Return an uninitialised array; CuPy's pool lends it.

        Not collective.
        """
        made = load_cupy().empty(shape, dtype)
        if ghosts:
            self.ghosts.hold(made, math.prod(shape) * np.dtype(dtype).itemsize)
        return made

    def start(
        self,
        plan: CommPlan,
        sent: DeviceArray,
        received: DeviceArray,
        *,
        forward: bool,
        stage: Stage | None = None,
    ) -> tuple[Crossing, Crossing]:
        """Start to move rows; see `Carrier`.

        Neighborwise collective.
        """
        # A lone rank's host must not wait for its device.
        if len(plan.peers) == 0:
            return Transfer(), Transfer()
        stage = plan.everything if stage is None else stage
        return self._transport.start(plan, stage, sent, received, forward=forward)

    def start_broadcast(self, rows: DeviceArray, root: int) -> Crossing:
        """Start to copy rows to all ranks; see `Carrier`.

        Collective.
        """
        if self._grid.layer.size == 1:
            return Transfer()
        return self._transport.start_broadcast(self._grid.layer, rows, root)

    def start_reduce(self, partial: DeviceArray, total: DeviceArray, root: int) -> Crossing:
        """Start to sum over the layer; see `Carrier`.

        Collective.
        """
        return self._transport.start_reduce(self._grid.layer, partial, total, root)

    def sum_over_replicas(self, partial: DeviceArray) -> None:
        """Replace an array by the sum over the replicas of this block row.

        Collective.
        """
        if self._grid.replication > 1:
            self._transport.combine(self._grid.replicas, partial, largest=False)

    def max_over_replicas(self, values: DeviceArray) -> None:
        """Replace an array by the largest over the replicas of this block row.

        Collective.
        """
        if self._grid.replication > 1:
            self._transport.combine(self._grid.replicas, values, largest=True)
