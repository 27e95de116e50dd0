"""Distributed sparse times dense: one loop, with the exchange and the process grid as objects.

`DistributedSpMM` is the loop, `DistributedAttention` the same loop with a softmax. An exchange cuts
the remote part of a matrix into entries whose dense rows are fetched and entries whose partial sums
are pushed (`cover`), and moves both through a ghost exchange (`planned`, `staged`, `broadcast`,
`hosts`), all at once or stage by stage as a `Schedule` says. `make_exchange` makes each by name. A
`Carrier` says where rows and products are, in main memory or in that of a GPU, and how rows travel
between such memories.
"""

from hpcgnn.spmm.attention import DistributedAttention
from hpcgnn.spmm.carrier import Carrier, HostCarrier
from hpcgnn.spmm.cover import COVERS
from hpcgnn.spmm.exchange import Exchange
from hpcgnn.spmm.ghosts import Combine, Fetch, GhostExchange, Ghosts, Push, Wire
from hpcgnn.spmm.operator import DistributedSpMM
from hpcgnn.spmm.planned import PlannedExchange
from hpcgnn.spmm.registry import EXCHANGES, WIRES, make_exchange, make_wire
from hpcgnn.spmm.remote import Halves, RemoteHalf
from hpcgnn.spmm.schedule import RESIDENT, SCHEDULES, Schedule
from hpcgnn.spmm.staged import StagedExchange

__all__ = [
    "COVERS",
    "EXCHANGES",
    "RESIDENT",
    "SCHEDULES",
    "WIRES",
    "Carrier",
    "Combine",
    "DistributedAttention",
    "DistributedSpMM",
    "Exchange",
    "Fetch",
    "GhostExchange",
    "Ghosts",
    "Halves",
    "HostCarrier",
    "PlannedExchange",
    "Push",
    "RemoteHalf",
    "Schedule",
    "StagedExchange",
    "Wire",
    "make_exchange",
    "make_wire",
]
