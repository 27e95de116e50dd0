"""The operators of a run: products and attention on the CPU or on a GPU, and what moves rows."""

from hpcgnn.comm import ProcessGrid
from hpcgnn.sparse import DistCSR
from hpcgnn.spmm import (
    Carrier,
    DistributedAttention,
    DistributedSpMM,
    Exchange,
    HostCarrier,
    Schedule,
    make_exchange,
)
from hpcgnn.spmm.device_carrier import DeviceCarrier
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.config import ExchangeConfig
from hpcgnn.train.device import Device
from hpcgnn.typing import GlobalIndices

__all__ = ["Operators", "make_operators"]


class Operators:
    """Makes exchanges and operators of one grid.

    Not collective.

    Parameters
    ----------
    grid, trace
        The ranks, the recorder.
    config
        How rows travel.
    carrier
        Where rows and products are.
    """

    def __init__(
        self, grid: ProcessGrid, config: ExchangeConfig, trace: TraceRecorder, carrier: Carrier
    ) -> None:
        self._grid, self._config, self._trace, self._carrier = grid, config, trace, carrier

    def exchange(self, pattern: DistCSR) -> Exchange:
        """Return what moves rows for matrices of a pattern.

        Collective.
        """
        config = self._config
        schedule = Schedule(config.schedule == "sequential", config.prefetch)
        return make_exchange(
            config.method,
            self._grid,
            pattern,
            self._trace,
            config.wire,
            schedule,
            self._carrier,
        )

    def product(self, matrix: DistCSR, exchange: Exchange) -> DistributedSpMM:
        """Return the operator of a matrix.

        Collective.
        """
        return DistributedSpMM(self._grid, matrix, exchange, self._trace)

    def attention(
        self,
        matrix: DistCSR,
        exchange: Exchange,
        row_ids: GlobalIndices,
        column_ids: GlobalIndices,
    ) -> DistributedAttention:
        """Return the attention over a pattern whose nodes have these ids.

        Collective.
        """
        return DistributedAttention(self._grid, matrix, exchange, self._trace, row_ids, column_ids)


def make_operators(
    device: Device, grid: ProcessGrid, config: ExchangeConfig, trace: TraceRecorder
) -> Operators:
    """Return what makes the operators of a device.

    Not collective.
    """
    carrier: Carrier = HostCarrier(grid)
    if device.transport is not None:
        carrier = DeviceCarrier(grid, device.transport, device.rule)
    return Operators(grid, config, trace, carrier)
