"""Simulated messages for the rehearsal of one rank of many: they deliver zeros and are counted.

All code above them is that of training. Zeros are written where rows would arrive, which costs the
memory and the stores of a real arrival, since the pages of a buffer count as memory when they are
first touched; and zeros are safe in every product.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from typing_extensions import override

from hpcgnn.comm import (
    CommPlan,
    Communicator,
    RowMap,
    RowRequest,
    Stage,
    Transfer,
)
from hpcgnn.plan.clock import computing_s
from hpcgnn.plan.traffic import (
    AllReduction,
    BlockPairs,
    ExchangeTimes,
    Movement,
    PatternKey,
    RowTransfer,
    Traffic,
)
from hpcgnn.spmm import Channel, Combine, Fetch, GhostExchange, Packing, Push, ReplicaSum
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Offsets

Log = Callable[[Movement | AllReduction], None]


def at_once() -> ExchangeTimes:
    """Return the window of messages that are waited for immediately."""
    now = computing_s()
    return ExchangeTimes(now, now)


class SilentTransport:
    """A transport that sends nothing; see `hpcgnn.spmm.Transport`.

    It logs sums over replicas of arrays that are not divided into rows.
    """

    in_step = False

    def __init__(self, rank: int, log: Log) -> None:
        self._rank, self._log = rank, log

    def start(
        self, plan: CommPlan, stage: Stage, sent: Array, received: Array, *, forward: bool
    ) -> tuple[Transfer, Transfer]:
        """Fill the received rows with zeros."""
        received[...] = 0
        return Transfer(), Transfer()

    def start_broadcast(self, comm: Communicator, rows: Array, root: int) -> Transfer:
        """Fill the rows with zeros if another rank is the root."""
        if root != self._rank:
            rows[...] = 0
        return Transfer()

    def start_reduce(self, comm: Communicator, partial: Array, total: Array, root: int) -> Transfer:
        """Fill the total with zeros if this rank is the root."""
        if root == self._rank:
            total[...] = 0
        return Transfer()

    def combine(self, comm: Communicator, values: Array) -> None:
        """Log the sum and leave the values."""
        self._log(AllReduction(values.nbytes, at_once()))


class CountedExchange:
    """A ghost exchange that logs the start of every fetch and push."""

    def __init__(
        self, inner: GhostExchange, log: Log, key: PatternKey, channel: Channel, *, pushed: bool
    ) -> None:
        self._inner, self._log, self._key = inner, log, key
        self._run_position = channel.grid.run_position
        self._what: RowTransfer = "pushed" if pushed else "fetched"
        self._is_ahead = channel.schedule.window(2) > 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def start_fetch(self, x: Array, *, keep: bool = False, columns: Packing | None = None) -> Fetch:
        """Start to deliver rows."""
        window = self._note(x, columns, reverse=False)
        # With prefetch, messages can be hidden until the last stage.
        last = len(self._inner.columns.widths) - 1 if self._is_ahead else 0
        fetch = self._inner.start_fetch(x, keep=keep, columns=columns)
        window.began_s = window.ended_s = computing_s()
        return TimedFetch(fetch, window, last)

    def start_push(self, like: Array, combine: Combine, columns: Packing | None = None) -> Push:
        """Start to return partial sums."""
        window = self._note(like, columns, reverse=True)
        first = 0 if self._is_ahead else len(self._inner.push_columns.widths) - 1
        return TimedPush(self._inner.start_push(like, combine, columns), window, first)

    def _note(self, rows: Array, columns: Packing | None, *, reverse: bool) -> ExchangeTimes:
        wire = self._inner.push_wire if reverse else self._inner.wire
        size = wire.way_bytes(rows, self._run_position, columns, forward=not reverse)
        joined = self._inner.carrier.joined_row_bytes
        bits = self._run_position.sum_bits if wire.has_sums(rows, forward=not reverse) else 0
        sums = (rows.shape[1], bits) if bits else None
        window = at_once()
        self._log(Movement(self._key, self._what, reverse, size, joined, sums, window))
        return window


class TimedFetch:
    """A fetch whose window ends when the computation needs stage `last`."""

    def __init__(self, inner: Fetch, window: ExchangeTimes, last: int) -> None:
        self._inner, self._window, self._last = inner, window, last

    def stage(self, index: int) -> Array:
        """Return the rows of a stage."""
        if index <= self._last:
            self._window.ended_s = computing_s()
        return self._inner.stage(index)


class TimedPush:
    """A push whose window begins when stage `first` is sent."""

    def __init__(self, inner: Push, window: ExchangeTimes, first: int) -> None:
        self._inner, self._window, self._first = inner, window, first
        self.buffer = inner.buffer

    def send(self, index: int) -> None:
        """Send the sums of a stage."""
        self._inner.send(index)
        if index == self._first:
            self._window.began_s = computing_s()

    def finish(self) -> None:
        """Combine what arrives."""
        self._window.ended_s = computing_s()
        self._inner.finish()


class CountedSum(ReplicaSum):
    """A sum over replicas that logs every start."""

    def __init__(self, log: Log, key: PatternKey, *arguments: Any) -> None:
        super().__init__(*arguments)
        *_, shares = arguments
        self._log, self._key, self._is_adjoint = log, key, shares.is_adjoint

    @override
    def bring(self, partial: Array, join: Combine) -> None:
        # One movement covers both directions: results are spread in the same width.
        if self.has_peers:
            size = partial.shape[1] * partial.itemsize
            self._log(Movement(self._key, "summed", self._is_adjoint, size, window=at_once()))
        super().bring(partial, join)


@dataclass(frozen=True, eq=False)
class CountedRequest(RowRequest):
    """A request for which rows of other ranks are zeros; see `RowRequest`.

    `own` are the positions of this rank's rows among the requested ones, `own_rows` their local
    rows. Exchanges are logged with `key`.
    """

    own: GlobalIndices
    own_rows: LocalIndices
    key: PatternKey
    log: Log

    def _note(self, array: Array, *, reverse: bool) -> None:
        size = array.shape[1] * array.itemsize
        self.log(Movement(self.key, "fetched", reverse, size, window=at_once()))

    @override
    def rows(self, array: Array) -> Array:
        self._note(array, reverse=False)
        # Pack the rows as if to send them, for its time and memory.
        np.ascontiguousarray(array[self.requested])
        arrived = np.zeros((len(self.owners), *array.shape[1:]), array.dtype)
        arrived[self.own] = array[self.own_rows]
        return arrived

    @override
    def add_back(self, array: Array) -> Array:
        self._note(array, reverse=True)
        total = np.zeros((self.num_rows, *array.shape[1:]), array.dtype)
        arrived = np.zeros((len(self.requested), *array.shape[1:]), array.dtype)
        total[self.requested] += arrived
        total[self.own_rows] += array[self.own]
        return total


@dataclass(frozen=True, eq=False)
class WantedRows:
    """The requests of all ranks for some rows, known to one process.

    `starts` (blocks + 1,) int64 are the owners' first rows; `wanted` holds for each block the
    ascending rows that its rank requests, own ones too.
    """

    starts: Offsets
    wanted: Sequence[GlobalIndices]

    def traffic(self, replication: int) -> Traffic:
        """Return the rows that ranks get from each other; each replica requests all of them."""
        blocks, num_rows = len(self.wanted), int(self.starts[-1])
        owner = RowMap(self.starts, 0).owner
        fetched = np.array([np.bincount(owner(rows), minlength=blocks) for rows in self.wanted])
        np.fill_diagonal(fetched, 0)
        fetched = np.repeat(fetched[None], replication, axis=0)
        sums = np.zeros((2, 2, blocks, replication, replication), np.int64)
        none = np.zeros(blocks, np.int64)
        pairs = BlockPairs.of_all(fetched, np.zeros_like(fetched))
        return Traffic.of_pairs(pairs, sums, none, num_rows, num_rows)

    def of_rank(self, block: int, key: PatternKey) -> Callable[..., CountedRequest]:
        """Return the function that makes the request of a rank from its ``comm`` and a ``log``."""
        row_map, rows = RowMap(self.starts, block), self.wanted[block]
        asked = [row_map.to_local(rows[row_map.is_local(rows)]) for rows in self.wanted]
        own = np.flatnonzero(row_map.is_local(rows))
        return partial(
            CountedRequest,
            askers=np.repeat(np.arange(len(asked), dtype=np.int32), [len(e) for e in asked]),
            requested=np.concatenate(asked),
            owners=row_map.owner(rows),
            num_rows=row_map.num_local,
            own=own,
            own_rows=row_map.to_local(rows[own]),
            key=key,
        )
