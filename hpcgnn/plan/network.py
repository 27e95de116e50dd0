"""What messages cost: the one part of a prediction that is computed and not measured."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.plan.stand_ins import Movement, Reduction
from hpcgnn.plan.traffic import PatternKey, Traffic
from hpcgnn.typing import Array


@dataclass(frozen=True)
class Network:
    """The links of the machine.

    Parameters
    ----------
    bandwidth
        Bytes a second that a rank sends, while all ranks send.
    latency_s
        Seconds of a message.
    ranks_per_host
        Ranks of a host; None: one host has all.

    Raises
    ------
    InputError
        When the bandwidth is not positive, or the latency negative.
    """

    bandwidth: float = 1e9
    latency_s: float = 5e-6
    ranks_per_host: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0):
            raise InputError(f"--bandwidth {self.bandwidth:g}: must be positive")
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise InputError(f"--latency {self.latency_s:g}: must not be negative")
        if self.ranks_per_host is not None and self.ranks_per_host < 1:
            raise InputError(f"--ranks-per-host {self.ranks_per_host}: at least 1")

    def seconds(self, sent: "Sent") -> float:
        """Return the seconds of the rank that needs longest, receiving as it sends."""
        busiest = np.maximum(sent.bytes_out, sent.bytes_in)
        times = busiest / self.bandwidth + sent.messages * self.latency_s
        return float(times.max(initial=0))


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


def sent_by_rank(
    moves: Iterable[Movement | Reduction], traffic: Mapping[PatternKey, Traffic], replication: int
) -> Sent:
    """Return what each rank of a grid sends in some exchanges.

    Parameters
    ----------
    moves
        The exchanges.
    traffic
        By pattern.
    replication
        Rank ``block * replication + replica`` serves the block columns of its replica.
    """
    num_blocks = next(iter(traffic.values())).fetched.shape[0]
    found = np.zeros((4, num_blocks * replication), np.int64)
    for move in moves:
        if isinstance(move, Reduction):
            found += np.array([[0], [move.num_bytes], [move.num_bytes], [1]])
            continue
        rows, messages, arrived = _rows_of(move, traffic[move.pattern], replication)
        found += np.array([rows, rows * move.row_bytes, arrived * move.row_bytes, messages])
    return Sent(*found)


def _rows_of(move: Movement, traffic: Traffic, replication: int) -> tuple[Array, Array, Array]:
    """Return the rows and messages that each rank sends, and the rows that it receives."""
    if move.what == "summed":
        sums = traffic.sums[int(move.reverse)]
        out, into = (sums.sum(axis=(0, axis)).reshape(-1) for axis in (3, 2))
        return out, (sums > 0).sum(axis=(0, 3)).reshape(-1), into
    is_pushed = move.what == "pushed"
    counts = _by_rank(traffic.pushed if is_pushed else traffic.fetched, replication)
    # A fetch takes rows from owners, a push brings partial sums to owners: of fetched rows the
    # block column is the owner, of pushed ones the block row.
    outward = move.reverse == is_pushed
    rows, messages, arrived, _ = counts if outward else (*counts[2:], *counts[:2])
    return rows, messages, arrived


def _by_rank(rows: Array, replication: int) -> tuple[Array, Array, Array, Array]:
    """Return rows and messages of each rank, sent by columns of `rows`, and received by rows."""
    num_blocks = len(rows)
    served = np.arange(num_blocks) % replication
    out, into = np.zeros((2, 2, num_blocks, replication), np.int64)
    for index, each in enumerate((rows, (rows > 0).astype(np.int64))):
        out[index][np.arange(num_blocks), served] = each.sum(axis=0)
        for replica in range(replication):
            into[index][:, replica] = each[:, served == replica].sum(axis=1)
    sent, received = out.reshape(2, -1), into.reshape(2, -1)
    return sent[0], sent[1], received[0], received[1]
