"""Who owns which rows, and how rows travel between ranks; the only importer of mpi4py.

`ProcessGrid` arranges the ranks, `RowMap` says who owns which rows, `CommPlan` remembers who sends
which rows to whom, and `collective` keeps errors from leaving ranks behind.
"""

from hpcgnn.comm.arguments import RankArgumentParser
from hpcgnn.comm.buffers import BufferPool, LiveBytes
from hpcgnn.comm.collective import (
    CollectiveInputError,
    Communicator,
    agree,
    all_ranks,
    bcast,
    raise_on_all,
)
from hpcgnn.comm.device_support import takes_device_memory
from hpcgnn.comm.grid import ProcessGrid
from hpcgnn.comm.host_memory import HostMemory
from hpcgnn.comm.launch import run_mpi_command
from hpcgnn.comm.plan import CommPlan
from hpcgnn.comm.redistribute import redistribute
from hpcgnn.comm.request import RowRequest
from hpcgnn.comm.row_map import RowMap
from hpcgnn.comm.share import share_on_hosts
from hpcgnn.comm.stages import Message, Stage, shift_times
from hpcgnn.comm.sums import (
    allreduce_max,
    allreduce_sum,
    start_broadcast,
    start_reduce,
    sum_over_ranks,
)
from hpcgnn.comm.transfer import Transfer
from hpcgnn.comm.volume import Volume

__all__ = [
    "BufferPool",
    "CollectiveInputError",
    "CommPlan",
    "Communicator",
    "HostMemory",
    "LiveBytes",
    "Message",
    "ProcessGrid",
    "RankArgumentParser",
    "RowMap",
    "RowRequest",
    "Stage",
    "Transfer",
    "Volume",
    "agree",
    "all_ranks",
    "allreduce_max",
    "allreduce_sum",
    "bcast",
    "raise_on_all",
    "redistribute",
    "run_mpi_command",
    "share_on_hosts",
    "shift_times",
    "start_broadcast",
    "start_reduce",
    "sum_over_ranks",
    "takes_device_memory",
]
