"""The operators of a run: products and attention on the CPU or on a GPU, and what moves rows."""

from typing import Any, Protocol

from hpcgnn.comm import ProcessGrid
from hpcgnn.kernels.cuda.group_size import PAPER_RULE, GroupRule
from hpcgnn.sparse import AggregationOperator, DistCSR
from hpcgnn.spmm import DistributedAttention, DistributedSpMM, Exchange, Schedule, make_exchange
from hpcgnn.spmm.device import DeviceSpMM
from hpcgnn.spmm.device_attention import DeviceAttention
from hpcgnn.spmm.device_exchange import DeviceExchange
from hpcgnn.spmm.ghosts import Wire
from hpcgnn.spmm.transports import Transport
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.config import ExchangeConfig
from hpcgnn.train.device import Device
from hpcgnn.typing import GlobalIndices

__all__ = ["DeviceOperators", "HostOperators", "OperatorFactory", "make_operators"]


class OperatorFactory(Protocol):
    """Makes exchanges and operators of one grid."""

    def exchange(self, pattern: DistCSR) -> Any:
        """Return what moves rows for matrices of a pattern, with its `volume`; collective."""
        ...

    def product(self, matrix: DistCSR, exchange: Any) -> AggregationOperator:
        """Return the operator of a matrix; collective."""
        ...

    def attention(
        self, matrix: DistCSR, exchange: Any, row_ids: GlobalIndices, column_ids: GlobalIndices
    ) -> AggregationOperator:
        """Return the attention over a pattern whose nodes have these ids; collective."""
        ...


class HostOperators:
    """Operators on the CPU.

    Not collective.

    Parameters
    ----------
    grid, trace
        The ranks, the recorder.
    config
        How rows travel.
    """

    def __init__(self, grid: ProcessGrid, config: ExchangeConfig, trace: TraceRecorder) -> None:
        self._grid, self._config, self._trace = grid, config, trace

    def exchange(self, pattern: DistCSR) -> Exchange:
        """Return what moves rows for matrices of a pattern.

        Collective.
        """
        config = self._config
        schedule = Schedule(config.schedule == "sequential", config.prefetch)
        return make_exchange(config.method, self._grid, pattern, self._trace, config.wire, schedule)

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
        """Return the attention over a pattern.

        Collective.
        """
        return DistributedAttention(self._grid, matrix, exchange, self._trace, row_ids, column_ids)


class DeviceOperators:
    """Operators on this rank's GPU, which `require_device` has allowed.

    Not collective.

    Parameters
    ----------
    grid, config, trace
        As for `HostOperators`.
    transport
        How rows travel between GPUs.
    rule
        Chooses the size of the neighbour groups of products.
    """

    def __init__(
        self,
        grid: ProcessGrid,
        config: ExchangeConfig,
        trace: TraceRecorder,
        transport: Transport,
        rule: GroupRule = PAPER_RULE,
    ) -> None:
        self._grid, self._trace, self._transport, self._rule = grid, trace, transport, rule
        self._wire = Wire("bfloat16" if config.wire == "bfloat16" else None)

    def exchange(self, pattern: DistCSR) -> DeviceExchange:
        """Return what moves rows for matrices of a pattern.

        Collective.
        """
        return DeviceExchange(self._grid, pattern, self._wire, self._transport, self._trace)

    def product(self, matrix: DistCSR, exchange: DeviceExchange) -> DeviceSpMM:
        """Return the operator of a matrix.

        Collective.
        """
        return DeviceSpMM(self._grid, matrix, exchange, self._trace, self._rule)

    def attention(
        self,
        matrix: DistCSR,
        exchange: DeviceExchange,
        row_ids: GlobalIndices,
        column_ids: GlobalIndices,
    ) -> DeviceAttention:
        """Return the attention over a pattern.

        Collective.
        """
        return DeviceAttention(self._grid, matrix, exchange, self._trace, row_ids, column_ids)


def make_operators(
    device: Device, grid: ProcessGrid, config: ExchangeConfig, trace: TraceRecorder
) -> OperatorFactory:
    """Return what makes the operators of a device.

    Not collective.
    """
    if device.transport is None:
        return HostOperators(grid, config, trace)
    return DeviceOperators(grid, config, trace, device.transport, device.rule)
