"""How far apart the clocks of ranks are, estimated from pings."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

from hpcgnn.comm.mpi import Communicator
from hpcgnn.spmd import collective

_ROUNDS = 16
_TAG = 71


@dataclass(frozen=True)
class ClockOffset:
    """What to add to the clock of this rank to have that of rank 0.

    Parameters
    ----------
    offset_ns
        The estimate.
    bound_ns
        The estimate is off by no more: half of the fastest ping's time.
    """

    offset_ns: int
    bound_ns: int


@collective
def clock_offset(
    comm: Communicator, clock: Callable[[], int] = perf_counter_ns, rounds: int = _ROUNDS
) -> ClockOffset:
    """Estimate how far the clock of this rank is from that of rank 0.

    Rank 0 pings one rank after the other; the fastest of the answers counts, whose time of writing
    lies between the sending of the ping and the arrival of the answer.

    Parameters
    ----------
    comm
        The ranks.
    clock
        Returns nanoseconds of this rank's monotonic clock.
    rounds
        Pings for each rank.
    """
    answer = np.zeros(2, np.int64)
    if comm.rank > 0:
        for _ in range(rounds):
            comm.Recv(answer[:1], source=0, tag=_TAG)
            answer[0] = clock()
            comm.Send(answer[:1], dest=0, tag=_TAG)
        comm.Recv(answer, source=0, tag=_TAG)
        return ClockOffset(int(answer[0]), int(answer[1]))
    for peer in range(1, comm.size):
        best = ClockOffset(0, np.iinfo(np.int64).max)
        for _ in range(rounds):
            sent = clock()
            comm.Send(answer[:1], dest=peer, tag=_TAG)
            comm.Recv(answer[:1], source=peer, tag=_TAG)
            arrived = clock()
            half = (arrived - sent + 1) // 2
            if half < best.bound_ns:
                best = ClockOffset(sent + half - int(answer[0]), half)
        comm.Send(np.array([best.offset_ns, best.bound_ns], np.int64), dest=peer, tag=_TAG)
    return ClockOffset(0, 0)
