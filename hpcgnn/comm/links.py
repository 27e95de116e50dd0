"""Latency and bandwidth between ranks, measured with messages between pairs of them."""

import platform
import time
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm.mpi import Communicator
from hpcgnn.spmd import collective

_SMALL_BYTES = 8
_LARGE_BYTES = 1 << 22


@dataclass(frozen=True)
class Link:
    """What two ranks measured while all other pairs of their round did so, too.

    Parameters
    ----------
    ranks
        Of the communicator.
    hosts
        Their hosts.
    latency_s
        Seconds of a message of 8 bytes, one way: the median of round trips, halved.
    bandwidth
        Bytes a second of messages of 4 MiB, one way at a time: the median.
    """

    ranks: tuple[int, int]
    hosts: tuple[str, str]
    latency_s: float
    bandwidth: float


@collective
def measure_links(comm: Communicator, seconds: float, host: str | None = None) -> list[Link]:
    """Measure between neighbouring hosts, or between neighbouring ranks where there is one host.

    Each takes part in two rounds at most (a ring); pairs of a round measure at the same time, as
    they would compete in a run.

    Parameters
    ----------
    seconds
        That the measurement may take, a slow message more or less.
    host
        Name of this rank's host; None asks the system.

    Returns
    -------
    list[Link]
        Equal on all ranks; empty for one rank.
    """
    names = comm.allgather(platform.node() if host is None else host)
    firsts = [rank for rank, name in enumerate(names) if name not in names[:rank]]
    members = firsts if len(firsts) > 1 else list(range(comm.size))
    position = members.index(comm.rank) if comm.rank in members else None
    links = []
    # With an odd number of members the pair that closes the ring needs a round of its own.
    rounds = [[(i, i + 1) for i in range(start, len(members) - 1, 2)] for start in (0, 1)]
    if len(members) > 2:
        rounds.append([(len(members) - 1, 0)])
    for pairs in rounds:
        comm.Barrier()
        for pair in pairs:
            if position is not None and position in pair:
                own_rank, peer = members[position], members[pair[1 - pair.index(position)]]
                latency_s, bandwidth = _measure(comm, peer, own_rank < peer, seconds / len(rounds))
                if own_rank < peer:
                    links.append(
                        Link((own_rank, peer), (names[own_rank], names[peer]), latency_s, bandwidth)
                    )
    gathered = comm.allgather(links)
    return [link for some in gathered for link in some]


def _measure(comm: Communicator, peer: int, leads: bool, seconds: float) -> tuple[float, float]:
    small = _median_trip(comm, peer, leads, _SMALL_BYTES, seconds / 4)
    large = _median_trip(comm, peer, leads, _LARGE_BYTES, seconds / 2)
    return small / 2, 2 * _LARGE_BYTES / large


def _median_trip(comm: Communicator, peer: int, leads: bool, size: int, seconds: float) -> float:
    """Return the median of the seconds there and back; the leader says when it is enough."""
    message, go_on = np.zeros(size, np.uint8), np.ones(1, np.uint8)
    times: list[float] = []
    start = time.perf_counter()
    while go_on[0]:
        begin = time.perf_counter()
        if leads:
            comm.Send(message, peer)
            comm.Recv(message, peer)
            times.append(time.perf_counter() - begin)
            # The first trips make connections and buffers.
            go_on[0] = time.perf_counter() - start < seconds or len(times) < 4
            comm.Send(go_on, peer)
        else:
            comm.Recv(message, peer)
            comm.Send(message, peer)
            comm.Recv(go_on, peer)
    return float(np.median(times[2:])) if leads else 1.0
