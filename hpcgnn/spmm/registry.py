"""The exchanges by the name that configurations use."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.errors import InputError
from hpcgnn.spmm.aware import AwareExchange
from hpcgnn.spmm.exchange import Exchange
from hpcgnn.spmm.oblivious import ObliviousExchange
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import GlobalIndices

__all__ = ["EXCHANGES", "make_exchange"]


class _Factory(Protocol):
    def __call__(
        self, grid: ProcessGrid, row_map: RowMap, ghosts: GlobalIndices, trace: TraceRecorder
    ) -> Exchange: ...


EXCHANGES: Mapping[str, _Factory] = MappingProxyType(
    {"aware": AwareExchange, "oblivious": ObliviousExchange}
)


def make_exchange(
    name: str, grid: ProcessGrid, row_map: RowMap, ghosts: GlobalIndices, trace: TraceRecorder
) -> Exchange:
    """Return the exchange called `name` for the ghosts of one pattern.

    Collective.

    Raises
    ------
    InputError
        When there is no such exchange.
    """
    if name not in EXCHANGES:
        raise InputError(f"exchange {name!r} is unknown; choose one of {', '.join(EXCHANGES)}")
    return EXCHANGES[name](grid, row_map, ghosts, trace)
