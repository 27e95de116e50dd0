"""The exchanges by the name that configurations use."""

from hpcgnn.comm import ProcessGrid
from hpcgnn.errors import InputError
from hpcgnn.sparse import DistCSR
from hpcgnn.spmm.broadcast import BroadcastExchange
from hpcgnn.spmm.cover import COVERS
from hpcgnn.spmm.exchange import CoveredExchange, Exchange, FetchAll
from hpcgnn.spmm.ghosts import Wire
from hpcgnn.spmm.hosts import HostExchange
from hpcgnn.spmm.planned import PlannedExchange
from hpcgnn.trace import TraceRecorder

__all__ = ["EXCHANGES", "WIRES", "make_exchange"]

EXCHANGES = ("oblivious", "aware", "push", "joint", "hierarchical")
"""Names of exchanges."""

WIRES = ("native", "bfloat16", "float16")
"""Names of wire formats; native is the dtype of the arrays."""


def make_exchange(
    name: str, grid: ProcessGrid, pattern: DistCSR, trace: TraceRecorder, wire: str = "native"
) -> Exchange:
    """Return the exchange called `name` for a pattern.

    Collective.

    Parameters
    ----------
    name
        One of `EXCHANGES`.
    grid
        The ranks.
    pattern
        The matrix; its values do not matter.
    trace
        Where rows and bytes are recorded.
    wire
        One of `WIRES`.

    Raises
    ------
    InputError
        When there is no such exchange or wire format.
    """
    for kind, chosen, known in (("exchange", name, EXCHANGES), ("wire format", wire, WIRES)):
        if chosen not in known:
            raise InputError(f"{kind} {chosen!r} is unknown; choose one of {', '.join(known)}")
    travels = Wire()
    if wire == "bfloat16":
        travels = Wire("bfloat16")
    elif wire == "float16":
        travels = Wire("float16")
    if name == "oblivious":
        return FetchAll(grid, pattern, BroadcastExchange, travels, trace)
    if name == "hierarchical":
        return CoveredExchange(grid, pattern, COVERS["aware"], HostExchange, travels, trace)
    return CoveredExchange(grid, pattern, COVERS[name], PlannedExchange, travels, trace)
