"""What messages cost, by the links of a machine, and how far apart the clocks of its ranks are."""

import math
import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns

import numpy as np

from hpcgnn.comm.grid import ProcessGrid
from hpcgnn.comm.mpi import MPI, Communicator
from hpcgnn.errors import InputError
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, FloatArray, LocalIndices

_SMALL_BYTES = 8
_LARGE_BYTES = 1 << 22


@dataclass(frozen=True)
class Link:
    """What two ranks of a communicator measured while all other pairs of their round did so, too.

    `latency_s` are seconds of a message of 8 bytes, one way: the median of round trips, halved.
    `bandwidth` are bytes a second of messages of 4 MiB, one way at a time: the median.
    """

    ranks: tuple[int, int]
    hosts: tuple[str, str]
    latency_s: float
    bandwidth: float


@collective
def measure_links(comm: Communicator, seconds: float, host: str | None = None) -> list[Link]:
    """Measure between neighbouring hosts, or between neighbouring ranks where there is one host.

    Each takes part in two rounds at most (a ring); pairs of a round measure at the same time, as
    they would compete in a run. It takes `seconds`, a slow message more or less; `host` names this
    rank's host, None asks the system. The links are equal on all ranks; there are none for one
    rank.
    """
    names = comm.allgather(platform.node() if host is None else host)
    firsts = _first_ranks(names)
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


@dataclass(frozen=True, eq=False)
class Sent:
    """What each rank sends and receives, (ranks,) int64 each.

    Of a sum of equal arrays what a rank hands in. A product sends one message to each neighbour.
    """

    rows: Array
    bytes_out: Array
    bytes_in: Array
    messages: Array


@dataclass(frozen=True)
class Network:
    """The links of the machine.

    `bandwidth` are bytes a second that a rank sends, while all ranks of its host send; `latency_s`
    seconds of a message. `ranks_per_host` None means that one host has all. The same between ranks
    of one host are `inside_bandwidth` and `inside_latency_s`; None: no better. Raises `InputError`
    where a bandwidth is not positive, or a latency negative.
    """

    bandwidth: float = 1e9
    latency_s: float = 5e-6
    ranks_per_host: int | None = None
    inside_bandwidth: float | None = None
    inside_latency_s: float | None = None

    def __post_init__(self) -> None:
        for bandwidth in (self.bandwidth, self.inside_bandwidth or 1.0):
            if not (math.isfinite(bandwidth) and bandwidth > 0):
                raise InputError(f"--bandwidth {bandwidth:g}: must be positive")
        for latency_s in (self.latency_s, self.inside_latency_s or 0.0):
            if not (math.isfinite(latency_s) and latency_s >= 0):
                raise InputError(f"--latency {latency_s:g}: must not be negative")
        if self.ranks_per_host is not None and self.ranks_per_host < 1:
            raise InputError(f"--ranks-per-host {self.ranks_per_host}: at least 1")

    def seconds(self, sent: Sent, between: Sent, hosts: LocalIndices) -> float:
        """Return the seconds of the rank that needs longest; see `rank_seconds`."""
        copying, link = self.rank_seconds(sent, between, hosts)
        return float((copying + link).max(initial=0))

    def rank_seconds(
        self, sent: Sent, between: Sent, hosts: LocalIndices
    ) -> tuple[FloatArray, FloatArray]:
        """Return (ranks,) the seconds of each rank inside its host, and on the link of its host.

        A rank receives as it sends. `sent` is all of it by all ranks, `between` what leaves a host,
        `hosts` (ranks,) int32 the host of each.
        """
        num_hosts = int(hosts.max(initial=0)) + 1
        inside = np.maximum(sent.bytes_out - between.bytes_out, sent.bytes_in - between.bytes_in)
        latency_s = self.latency_s if self.inside_latency_s is None else self.inside_latency_s
        copying = inside / (self.inside_bandwidth or self.bandwidth)
        copying = copying + (sent.messages - between.messages) * latency_s
        # The ranks of a host share its link, whoever of them sends.
        out = np.bincount(hosts, between.bytes_out, num_hosts)
        into = np.bincount(hosts, between.bytes_in, num_hosts)
        link = np.maximum(out, into) / (self.bandwidth * np.bincount(hosts, minlength=num_hosts))
        return copying, link[hosts] + between.messages * self.latency_s

    @classmethod
    @collective
    def measured(cls, grid: ProcessGrid, seconds: float) -> "Network":
        """Return the links of the machine that the ranks are on, measured in so many seconds."""
        names = grid.host_names
        ranks = max(Counter(names).values())
        everywhere = measure_links(grid.world, seconds / 2, grid.host)
        mates = MPI.Intracomm(grid.world.Split(names.index(grid.host), grid.world.rank))
        measured = measure_links(mates, seconds / 2, grid.host)
        mates.Free()
        inside = [link for some in grid.world.allgather(measured) for link in some]
        outside = [link for link in everywhere if link.hosts[0] != link.hosts[1]]
        if not inside and not outside:
            return cls()

        def typical(links: list[Link], key: str) -> float:
            return float(median(getattr(link, key) for link in links))

        outside, inside = outside or inside, inside or outside
        return cls(
            typical(outside, "bandwidth") / ranks,
            typical(outside, "latency_s"),
            ranks,
            typical(inside, "bandwidth"),
            typical(inside, "latency_s"),
        )


ROUNDS = 16
"""Pings of each host."""
_TAG = 71


@dataclass(frozen=True)
class ClockOffset:
    """What to add to the clock of this rank to have that of rank 0.

    The estimate is off by no more than `bound_ns`: half of the fastest pings' times.
    """

    offset_ns: int
    bound_ns: int

    def __add__(self, other: "ClockOffset") -> "ClockOffset":
        """Return the offset of a clock that is off by `other` from one that is off by this."""
        return ClockOffset(self.offset_ns + other.offset_ns, self.bound_ns + other.bound_ns)


@collective
def clock_offset(
    comm: Communicator, hosts: Sequence[str], clock: Callable[[], int] = perf_counter_ns
) -> ClockOffset:
    """Estimate how far the clock of this rank is from that of rank 0.

    Ranks of one host share its monotonic clock; `hosts` names that of each rank. Its first rank is
    pinged `ROUNDS` times by that of a host whose offset is known, as many hosts at once as are
    known; the fastest of the answers counts, whose time of writing lies between the sending of the
    ping and the arrival of the answer. `clock` returns nanoseconds of this rank's monotonic clock.
    """
    firsts, own = _first_ranks(hosts), ClockOffset(0, 0)
    place = firsts.index(comm.rank) if comm.rank in firsts else len(firsts)
    known = 1
    while known < len(firsts):
        if place < known and place + known < len(firsts):
            peer = firsts[place + known]
            pings = (_ping(comm, peer, clock) for _ in range(ROUNDS))
            best = min(pings, key=lambda each: each.bound_ns)
            comm.send(own + best, dest=peer, tag=_TAG)
        elif known <= place < 2 * known:
            _answer(comm, firsts[place - known], clock)
            own = comm.recv(source=firsts[place - known], tag=_TAG)
        known *= 2
    return comm.allgather(own)[hosts.index(hosts[comm.rank])]


def _first_ranks(hosts: Sequence[str]) -> list[int]:
    """Return the first rank of each host."""
    return [hosts.index(name) for name in dict.fromkeys(hosts)]


def _ping(comm: Communicator, peer: int, clock: Callable[[], int]) -> ClockOffset:
    answer = np.zeros(1, np.int64)
    sent = clock()
    comm.Send(answer, dest=peer, tag=_TAG)
    comm.Recv(answer, source=peer, tag=_TAG)
    half = (clock() - sent + 1) // 2
    return ClockOffset(sent + half - int(answer[0]), half)


def _answer(comm: Communicator, peer: int, clock: Callable[[], int]) -> None:
    answer = np.zeros(1, np.int64)
    for _ in range(ROUNDS):
        comm.Recv(answer, source=peer, tag=_TAG)
        answer[0] = clock()
        comm.Send(answer, dest=peer, tag=_TAG)
