"""Distributed sparse times dense: one loop, with the exchange and the process grid as objects.

`DistributedSpMM` is the loop. An exchange cuts the remote part of a matrix into entries whose dense
rows are fetched and entries whose partial sums are pushed (`cover`), and moves both through a ghost
exchange (`planned`, `broadcast`). `make_exchange` makes each by name.
"""

from hpcgnn.spmm.exchange import Exchange
from hpcgnn.spmm.operator import DistributedSpMM
from hpcgnn.spmm.registry import EXCHANGES, WIRES, make_exchange

__all__ = ["EXCHANGES", "WIRES", "DistributedSpMM", "Exchange", "make_exchange"]
