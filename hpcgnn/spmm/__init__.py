"""Distributed products of a sparse and a dense matrix, for any exchange and process grid.

`DistributedSpMM` is the product loop. An `Exchange` divides the remote part of a matrix into
entries whose dense rows are fetched and entries whose partial sums are pushed (`cover`). Both go
through a ghost exchange (`direct`, `hosts`, `broadcast`), all at once or in stages (`Schedule`). A
`Carrier` provides the memory of rows and the `Transport` that takes them to other ranks.
"""

from hpcgnn.spmm.carrier import Carrier, Transport
from hpcgnn.spmm.cover import CoverSplit, PushedEntries
from hpcgnn.spmm.exact import ExactProduct, IntegerSums
from hpcgnn.spmm.exchange.ghosts import Channel, Fetch, GhostExchange, Push
from hpcgnn.spmm.exchange.peers import Ghosts, LayerGhosts, Peers
from hpcgnn.spmm.exchange.stages import Combine
from hpcgnn.spmm.product import DistributedSpMM
from hpcgnn.spmm.registry import (
    AUTO,
    EXCHANGES,
    METHODS,
    Method,
    exchange_by,
    find_method,
    make_exchange,
)
from hpcgnn.spmm.remote import Exchange, RemotePart
from hpcgnn.spmm.replicas import ReplicaShares, ReplicaSum
from hpcgnn.spmm.schedule import RESIDENT, SCHEDULES, Schedule
from hpcgnn.spmm.wire import WIRES, Packing, Wire, make_wire, quantises, sum_bytes, wire_traits
