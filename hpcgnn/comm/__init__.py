"""Ownership of rows and their exchange between ranks; the only package that imports mpi4py.

`ProcessGrid` arranges the ranks, `RowMap` assigns rows to owners, `CommPlan` records which rows go
to which rank, and `agree` raises an error on all ranks, so that none is left waiting.
"""

from hpcgnn.comm.collective import (
    agree,
    all_ranks,
    bcast,
    raise_on_all,
    recv_any,
    send_any,
)
from hpcgnn.comm.grid import GridPosition, ProcessGrid, share_on_hosts
from hpcgnn.comm.halo import CommPlan, Request, Volume
from hpcgnn.comm.joined_messages import JoinedMessages, are_joined
from hpcgnn.comm.mpi import Communicator, installed_mpi, mpi_library, takes_device_memory
from hpcgnn.comm.network import Link, Network, Sent, clock_offset, measure_links
from hpcgnn.comm.progress import MessageProgress
from hpcgnn.comm.rank_group import ONE_PROCESS, MpiGroup, RankGroup
from hpcgnn.comm.redistribute import RowRequest, redistribute, redistribute_lists, rows_of
from hpcgnn.comm.row_map import RowMap
from hpcgnn.comm.run_position import Instant, RunPosition, Way
from hpcgnn.comm.stages import Message, Stage, rows_of_messages, shift_times
from hpcgnn.comm.transfer import (
    Transfer,
    allreduce_max,
    allreduce_sum,
    allreduce_xor,
    exclusive_sum,
    start_broadcast,
    start_reduce,
    sum_over_ranks,
)
from hpcgnn.errors import CollectiveInputError
