"""Distributed sparse times dense: one loop, with the exchange and the process grid as objects.

`DistributedSpMM` is the loop; `aware` fetches only the rows that are needed and `oblivious`
broadcasts whole block rows. A new exchange is a new file here and an entry in `EXCHANGES`.
"""

from hpcgnn.spmm.aware import AwareExchange
from hpcgnn.spmm.exchange import Exchange, Fetch, Push
from hpcgnn.spmm.oblivious import ObliviousExchange
from hpcgnn.spmm.operator import DistributedSpMM
from hpcgnn.spmm.registry import EXCHANGES, make_exchange

__all__ = [
    "EXCHANGES",
    "AwareExchange",
    "DistributedSpMM",
    "Exchange",
    "Fetch",
    "ObliviousExchange",
    "Push",
    "make_exchange",
]
