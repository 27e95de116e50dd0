"""The cost of messages on the links of a machine, and the offsets between its ranks' clocks."""

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
    """The link between two ranks, measured while all other pairs of its round measured too.

    `latency_s` is the time of an 8-byte message in one direction: half the median round trip.
    `bandwidth` is the median in bytes per second of messages of 4 MiB, one direction at a time.
    """

    ranks: tuple[int, int]
    hosts: tuple[str, str]
    latency_s: float
    bandwidth: float


@collective
def measure_links(comm: Communicator, seconds: float, host: str | None = None) -> list[Link]:
    """Measure links between neighbouring hosts, or neighbouring ranks if there is only one host.

    They form a ring, so each takes part in at most two rounds; the pairs of a round measure at the
    same time, as they would compete in a run. This takes about `seconds`. `host` names this rank's
    host; None asks the system. All ranks get the same links; a single rank gets none.
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
    return [link for of_rank in gathered for link in of_rank]


def _measure(comm: Communicator, peer: int, leads: bool, seconds: float) -> tuple[float, float]:
    small = _median_trip(comm, peer, leads, _SMALL_BYTES, seconds / 4)
    large = _median_trip(comm, peer, leads, _LARGE_BYTES, seconds / 2)
    return small / 2, 2 * _LARGE_BYTES / large


def _median_trip(comm: Communicator, peer: int, leads: bool, size: int, seconds: float) -> float:
    """Return the median seconds of round trips; the leader decides when to stop."""
    message, go_on = np.zeros(size, np.uint8), np.ones(1, np.uint8)
    times: list[float] = []
    start = time.perf_counter()
    while go_on[0]:
        begin = time.perf_counter()
        if leads:
            comm.Send(message, peer)
            comm.Recv(message, peer)
            times.append(time.perf_counter() - begin)
            # The first two trips set up connections and buffers and are not counted.
            go_on[0] = time.perf_counter() - start < seconds or len(times) < 4
            comm.Send(go_on, peer)
        else:
            comm.Recv(message, peer)
            comm.Send(message, peer)
            comm.Recv(go_on, peer)
    return float(np.median(times[2:])) if leads else 1.0


@dataclass(frozen=True, eq=False)
class Sent:
    """The traffic of each rank, (ranks,) int64 each.

    In a reduction, rows and bytes are those that a rank contributes. A product sends one message to
    each neighbour.
    """

    rows: Array
    bytes_out: Array
    bytes_in: Array
    messages: Array


@dataclass(frozen=True)
class Network:
    """The links of the machine.

    `bandwidth` is bytes per second sent by a rank while all ranks of its host send; `latency_s` is
    seconds per message. `ranks_per_host` None means that all ranks are on one host. Between ranks
    of a host `inside_bandwidth` and `inside_latency_s` apply; None: the same as between hosts.
    Raises `InputError` if a bandwidth is not positive or a latency is negative.
    """

    bandwidth: float = 1e9
    latency_s: float = 5e-6
    ranks_per_host: int | None = None
    inside_bandwidth: float | None = None
    inside_latency_s: float | None = None

    def __post_init__(self) -> None:
        for bandwidth in (self.bandwidth, self.inside_bandwidth):
            if bandwidth is not None and not (math.isfinite(bandwidth) and bandwidth > 0):
                raise InputError(f"--bandwidth {bandwidth:g}: must be positive")
        for latency_s in (self.latency_s, self.inside_latency_s or 0.0):
            if not (math.isfinite(latency_s) and latency_s >= 0):
                raise InputError(f"--latency {latency_s:g}: must not be negative")
        if self.ranks_per_host is not None and self.ranks_per_host < 1:
            raise InputError(f"--ranks-per-host {self.ranks_per_host}: at least 1")

    def seconds(self, sent: Sent, between: Sent, hosts: LocalIndices) -> float:
        """Return the seconds of the slowest rank; see `rank_seconds`."""
        copying, link = self.rank_seconds(sent, between, hosts)
        return float((copying + link).max(initial=0))

    def rank_seconds(
        self, sent: Sent, between: Sent, hosts: LocalIndices
    ) -> tuple[FloatArray, FloatArray]:
        """Return (ranks,) the seconds of each rank inside its host, and on the link of its host.

        A rank sends and receives at the same time. `sent` is all traffic, `between` the part
        between hosts, and `hosts` (ranks,) int32 the host of each rank.
        """
        num_hosts = int(hosts.max(initial=0)) + 1
        inside = np.maximum(sent.bytes_out - between.bytes_out, sent.bytes_in - between.bytes_in)
        latency_s = self.latency_s if self.inside_latency_s is None else self.inside_latency_s
        copying = inside / (self.inside_bandwidth or self.bandwidth)
        copying = copying + (sent.messages - between.messages) * latency_s
        # All ranks of a host share its link, so the link's time counts for each.
        out = np.bincount(hosts, between.bytes_out, num_hosts)
        into = np.bincount(hosts, between.bytes_in, num_hosts)
        link = np.maximum(out, into) / (self.bandwidth * np.bincount(hosts, minlength=num_hosts))
        return copying, link[hosts] + between.messages * self.latency_s

    @classmethod
    @collective
    def measured(cls, grid: ProcessGrid, seconds: float) -> "Network":
        """Measure the network that the ranks run on, in about `seconds`."""
        names = grid.host_names
        ranks = max(Counter(names).values())
        everywhere = measure_links(grid.world, seconds / 2, grid.host)
        on_host = MPI.Intracomm(grid.world.Split(names.index(grid.host), grid.world.rank))
        measured = measure_links(on_host, seconds / 2, grid.host)
        on_host.Free()
        inside = [link for of_rank in grid.world.allgather(measured) for link in of_rank]
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
"""Number of pings to each host."""
_TAG = 71


@dataclass(frozen=True)
class ClockOffset:
    """The offset to add to this rank's clock to obtain rank 0's.

    The error is at most `bound_ns`, half the round-trip time of the fastest pings.
    """

    offset_ns: int
    bound_ns: int

    def __add__(self, other: "ClockOffset") -> "ClockOffset":
        """Return the offset of a clock that has offset `other` to a clock with this offset."""
        return ClockOffset(self.offset_ns + other.offset_ns, self.bound_ns + other.bound_ns)


@collective
def clock_offset(
    comm: Communicator, hosts: Sequence[str], clock: Callable[[], int] = perf_counter_ns
) -> ClockOffset:
    """Estimate the offset of this rank's clock to rank 0's.

    The ranks of a host share its monotonic clock; `hosts` names the host of each rank. A host whose
    offset is known pings the first rank of another `ROUNDS` times, and all known hosts do so at
    once. The answer carries the time at which it was written, which lies between the ping's sending
    and the answer's arrival; the fastest answer is used. `clock` returns nanoseconds of this rank's
    monotonic clock.
    """
    firsts, own = _first_ranks(hosts), ClockOffset(0, 0)
    is_first = comm.rank in firsts
    host, known = firsts.index(comm.rank) if is_first else 0, 1
    while is_first and known < len(firsts):
        if host < known and host + known < len(firsts):
            peer = firsts[host + known]
            pings = (_ping(comm, peer, clock) for _ in range(ROUNDS))
            best = min(pings, key=lambda ping: ping.bound_ns)
            comm.send(own + best, dest=peer, tag=_TAG)
        elif known <= host < 2 * known:
            _answer(comm, firsts[host - known], clock)
            own = comm.recv(source=firsts[host - known], tag=_TAG)
        known *= 2
    return comm.allgather(own)[hosts.index(hosts[comm.rank])]


def _first_ranks(hosts: Sequence[str]) -> list[int]:
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
