"""Rows of other ranks' nodes that edges read, and sums that go back to their owners."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hpcgnn.attention.fetch_and_push import push_order, store_rows
from hpcgnn.attention.softmax import widen
from hpcgnn.comm import Instant, RunPosition
from hpcgnn.spmd import collective, neighborwise_collective
from hpcgnn.spmm.exchange.ghosts import Fetch, Push
from hpcgnn.spmm.exchange.stages import Combine
from hpcgnn.spmm.remote import Pushing, RemotePart
from hpcgnn.spmm.wire import ColumnRange
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, FloatArray

Gradient = Callable[[int, Array | None], FloatArray]
"""Maps a stage's number and fetched rows (rows, width) to the gradients of these rows."""


@dataclass(frozen=True, eq=False)
class Fetched:
    """Fetched rows of the forward pass, for the backward pass.

    `kept` are the rows of each stage; None: they are fetched again, with the rounding of the
    product at `instant`.
    """

    kept: list[Array] | None
    instant: Instant | None = None


class RemoteRows:
    """Exchanges the rows of a remote part's ghosts, stage by stage.

    A fetch brings the rows; a push takes sums for them to their owners.
    """

    def __init__(self, part: RemotePart, run_position: RunPosition, trace: TraceRecorder) -> None:
        self._part, self._run_position, self._trace = part, run_position, trace
        self._order = [
            None if order is None else part.memory.put(order) for order in push_order(part)
        ]

    @property
    def keeps(self) -> bool:
        """Whether fetched rows may be kept for the backward pass."""
        return not self._part.ghosts.sequential

    @collective
    def start_fetch(
        self, rows: Array, instant: Instant | None = None, *, keep: bool = False
    ) -> Fetch:
        """Start to fetch the rows (owned, width); see `arrived`.

        They belong to the product of `instant`, by default the next one. With `keep`, they stay in
        memory if the schedule is resident.
        """
        return self.start_fetch_of([(rows, instant)], keep=keep)

    @collective
    def start_fetch_of(
        self, columns: Sequence[tuple[Array, Instant | None]], *, keep: bool = False
    ) -> Fetch:
        """Start to fetch several arrays in one exchange; each is as in `start_fetch`."""
        packing = [
            ColumnRange(rows.shape[1], instant or self._next_product()) for rows, instant in columns
        ]
        parts = [rows for rows, _ in columns]
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return self._part.ghosts.start_fetch(rows, keep=keep and self.keeps, columns=packing)

    def _next_product(self) -> Instant:
        self._run_position.next_product()
        return self._run_position.now

    @neighborwise_collective
    def arrived(self, fetch: Fetch, index: int, dtype: np.dtype[np.generic]) -> Array:
        """Wait for the rows of a stage and return them in `dtype`, that of the rows sent."""
        rows = fetch.stage(index)
        return rows if rows.dtype == dtype else widen(rows, self._part.ghosts.wire.half)

    def in_push_order(self, index: int, rows: Array) -> Array:
        """Return the rows of a stage in the order of a push."""
        order = self._order[index]
        return rows if order is None else rows[order]

    @collective
    def fetch_again(self, rows: Array, fetched: Fetched) -> Iterator[tuple[int, Array]]:
        """Yield each stage's number and its rows, kept or fetched again, in the order of a push."""
        kept = fetched.kept
        fetch = self.start_fetch(rows, fetched.instant) if kept is None else None
        for index in range(len(self._order)):
            if kept is None:
                assert fetch is not None
                with self._trace.span("wait.reverse"):
                    arrived = self.arrived(fetch, index, rows.dtype)
            else:
                arrived = kept[index]
            yield index, self.in_push_order(index, arrived)

    @collective
    def start_push(self, like: Array, into: Callable[[], FloatArray]) -> Push:
        """Start to send sums of the width and dtype of `like` to their owners.

        The owners add them to the float32 or float64 array that `into` returns on arrival.
        """
        part = self._part
        combine = Combine(lambda rows, sums: part.adding(into())(rows, sums))
        columns = [ColumnRange(like.shape[1], self._next_product())]
        return part.ghosts.start_push(like, combine, columns)

    @neighborwise_collective
    def send(self, push: Push, index: int, sums: FloatArray) -> None:
        """Send the sums (ghosts of the stage, width) of a stage."""
        self._send(push, index, lambda: sums)

    def _send(self, push: Push, index: int, sums: Callable[[], FloatArray]) -> None:
        with self._trace.span("wait.reverse"):
            buffer = push.buffer(index)
        with self._trace.span("boundary.reverse"):
            store_rows(sums(), buffer, self._part.ghosts.wire.format, self._part.memory)
        push.send(index)

    @collective
    def start_return(
        self, rows: Array, fetched: Fetched, total: FloatArray, gradient: Gradient
    ) -> Pushing:
        """Start to return the gradients of fetched rows to their owners.

        `rows` are as in `start_fetch`; arriving gradients are added to `total` (owned, width),
        float32 or float64; `gradient` computes those of a stage.
        """

        def fill(push: Push) -> None:
            for index, arrived in self.fetch_again(rows, fetched):
                self._send(push, index, partial(gradient, index, arrived))

        return Pushing(self._part, self.start_push(total, lambda: total), fill)
