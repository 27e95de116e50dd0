"""One case of the exchange benchmark: a product, its times, and its measured traffic."""

import platform
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.comm import ProcessGrid
from hpcgnn.sparse import DistCSR
from hpcgnn.spmm import DistributedSpMM, make_exchange
from hpcgnn.trace import Span, TraceRecorder
from hpcgnn.trace.span import Peers
from hpcgnn.typing import Array

__all__ = ["Case", "Counter", "Sizes"]


class Counter(TraceRecorder):
    """A recorder that counts the traffic sent by this rank.

    A message is one entry of a span's peers: a neighbour that receives rows. A broadcast counts one
    for each other rank of the layer, like the p - 1 edges of its tree, and a reduction one for each
    contributing rank, however the MPI library forwards them. A sum over replicas counts as rows
    between them.
    """

    def __init__(self, grid: ProcessGrid) -> None:
        super().__init__(None)
        hosts = grid.world.allgather(platform.node())
        self._elsewhere = [host != hosts[grid.rank] for host in hosts]
        self.reset()

    def reset(self) -> None:
        """Forget everything counted so far."""
        self.rows_to = np.zeros(len(self._elsewhere), np.int64)
        self.bytes = self.bytes_elsewhere = self.messages = 0
        self.bytes_summed = self.rows_summed = 0

    def span(
        self,
        name: str,
        *,
        rows: int = 0,
        bytes: int = 0,  # noqa: A002
        peers: Peers | None = None,
        **attributes: Any,
    ) -> Span:
        """Return a span as any recorder does, after counting it."""
        self.rows_summed += rows * name.startswith("reduce")
        for peer, moved_rows, moved_bytes in peers or ():
            self.rows_to[peer] += moved_rows
            self.bytes += moved_bytes
            self.bytes_elsewhere += moved_bytes * self._elsewhere[peer]
            self.messages += moved_rows > 0
        if name.startswith("reduce"):
            self.bytes_summed += bytes
        return super().span(name, rows=rows, bytes=bytes, peers=peers, **attributes)

    def note(self, **numbers: int) -> None:
        """Count messages shared by two exchanges once."""
        self.messages -= numbers.get("joined_messages", 0)


@dataclass(frozen=True)
class Sizes:
    """The traffic of one product, summed over ranks; equal on all ranks.

    `bytes_total` includes `bytes_between_hosts`, and `bytes_summed` of the sum over replicas.
    """

    rows_total: int
    rows_max_send: int
    rows_max_recv: int
    bytes_total: int
    bytes_max_send: int
    bytes_between_hosts: int
    messages_total: int
    bytes_summed: int

    @classmethod
    def measured(cls, grid: ProcessGrid, counter: Counter) -> "Sizes":
        """Return the counts of `counter` since its reset, over all ranks; collective."""
        sent = int(counter.rows_to.sum())
        everywhere = np.array(grid.world.allgather(counter.rows_to))
        mine = (
            sent,
            counter.bytes,
            counter.bytes_elsewhere,
            counter.messages,
            counter.bytes_summed,
        )
        rows, size, elsewhere, messages, summed = np.array(grid.world.allgather(mine)).T
        return cls(
            rows_total=int(rows.sum()),
            rows_max_send=int(rows.max()),
            rows_max_recv=int(everywhere.sum(axis=0).max()),
            bytes_total=int(size.sum()),
            bytes_max_send=int(size.max()),
            bytes_between_hosts=int(elsewhere.sum()),
            messages_total=int(messages.sum()),
            bytes_summed=int(summed.sum()),
        )


class Case:
    """An exchange and a wire format on a grid, with the product that uses them; collective."""

    def __init__(
        self, grid: ProcessGrid, pattern: DistCSR, matrix: DistCSR, exchange: str, wire: str
    ) -> None:
        self._grid = grid
        self.exchange, self.wire = exchange, wire
        self.counter = Counter(grid)
        self._exchange = make_exchange(exchange, grid, pattern, self.counter, wire)
        self._product = DistributedSpMM(matrix, self._exchange)
        self._seconds: dict[str, list[float]] = {"forward": [], "adjoint": []}

    def run(self, x: Array, y: Array) -> None:
        """Time one product and one adjoint: the slowest rank's seconds; collective."""
        for name, apply, rows in (
            ("forward", self._product.apply, x),
            ("adjoint", self._product.apply_transpose, y),
        ):
            self._grid.world.Barrier()
            began = time.perf_counter()
            apply(rows)
            mine = time.perf_counter() - began
            self._seconds[name].append(max(self._grid.world.allgather(mine)))

    def measure(self, x: Array, y: Array) -> Sizes:
        """Run once untimed, compare the traffic with the plan, and return it.

        Collective.

        Raises
        ------
        RuntimeError
            If a rank did not send the number of rows in its plan.
        """
        grid, counter = self._grid, self.counter
        planned, exchange = self._product.volume(), self._exchange
        sides = (
            (planned.sent, exchange.sum_rows.num_sent),
            (planned.received, exchange.sum_columns.num_sent),
        )
        sizes = []
        for apply, rows, (send, summed) in zip(
            (self._product.apply, self._product.apply_transpose), (x, y), sides, strict=True
        ):
            counter.reset()
            apply(rows)
            moved = (int(counter.rows_to.sum()), int(counter.rows_summed))
            expected = (int(send.sum()) + summed, summed)
            if grid.world.allreduce(moved != expected):
                raise RuntimeError(
                    f"{self.exchange}, {self.wire}, replication {grid.replication}: this rank "
                    f"sent {moved} rows in total and in sums, its plan says {expected}"
                )
            sizes.append(Sizes.measured(grid, counter))
        return sizes[0]

    def forget_times(self) -> None:
        """Drop the times of warm-up runs."""
        for seconds in self._seconds.values():
            seconds.clear()

    def spread(self, name: str) -> tuple[float, float, float]:
        """Return median, least and greatest seconds of `forward` or `adjoint`."""
        seconds = self._seconds[name]
        return statistics.median(seconds), min(seconds), max(seconds)
