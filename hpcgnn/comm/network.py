"""What messages cost, by the links of a machine: inside its hosts, and between them."""

import math
from dataclasses import dataclass
from statistics import median

import numpy as np

from hpcgnn.comm.grid import ProcessGrid
from hpcgnn.comm.links import Link, measure_links
from hpcgnn.comm.mpi import MPI
from hpcgnn.errors import InputError
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, LocalIndices


@dataclass(frozen=True, eq=False)
class Sent:
    """What each rank sends and receives, (ranks,) int64 each.

    Parameters
    ----------
    rows, bytes_out, bytes_in
        Rows and bytes sent, bytes received. Of a sum of equal arrays what a rank hands in.
    messages
        Sent; a product sends one to each neighbour.
    """

    rows: Array
    bytes_out: Array
    bytes_in: Array
    messages: Array


@dataclass(frozen=True)
class Network:
    """The links of the machine.

    Parameters
    ----------
    bandwidth
        Bytes a second that a rank sends, while all ranks of its host send.
    latency_s
        Seconds of a message.
    ranks_per_host
        Ranks of a host; None: one host has all.
    inside_bandwidth, inside_latency_s
        The same between ranks of one host; None: no better.

    Raises
    ------
    InputError
        When a bandwidth is not positive, or a latency negative.
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
        """Return the seconds of the rank that needs longest, receiving as it sends.

        Parameters
        ----------
        sent, between
            By all ranks: all of it, and what leaves a host.
        hosts
            (ranks,) int32 the host of each.
        """
        num_hosts = int(hosts.max(initial=0)) + 1
        inside = np.maximum(sent.bytes_out - between.bytes_out, sent.bytes_in - between.bytes_in)
        times = inside / (self.inside_bandwidth or self.bandwidth)
        latency_s = self.latency_s if self.inside_latency_s is None else self.inside_latency_s
        times = times + (sent.messages - between.messages) * latency_s
        # The ranks of a host share its link, whoever of them sends.
        out, into = (
            np.bincount(hosts, num_bytes, num_hosts)
            for num_bytes in (between.bytes_out, between.bytes_in)
        )
        link = np.maximum(out, into) / (self.bandwidth * np.bincount(hosts, minlength=num_hosts))
        times += link[hosts] + between.messages * self.latency_s
        return float(times.max(initial=0))

    @classmethod
    @collective
    def measured(cls, grid: ProcessGrid, seconds: float) -> "Network":
        """Return the links of the machine that the ranks are on, measured in so many seconds."""
        names = grid.world.allgather(grid.host)
        ranks = max(names.count(name) for name in names)
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
