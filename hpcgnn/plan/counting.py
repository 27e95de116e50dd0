"""Messages of one process that stands for a rank of many: they bring zeros, and are counted.

Everything above them is the code that trains. Zeros are written where rows would arrive, which
takes the memory and the stores of a real arrival: pages of a buffer count as memory when they are
first touched, and zeros are safe in every product.
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
    Moment,
    RowMap,
    RowRequest,
    Stage,
    Transfer,
)
from hpcgnn.plan.traffic import Movement, PatternKey, Reduction, RowTransfer, Traffic
from hpcgnn.spmm import Combine, Fetch, GhostExchange, Packing, Push, ReplicaSum
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Offsets

Log = Callable[[Movement | Reduction], None]


class SilentTransport:
    """A transport whose messages are not sent; see `hpcgnn.spmm.Transport`.

    The log hears of sums over replicas that are not of rows.
    """

    in_step = False

    def __init__(self, rank: int, log: Log) -> None:
        self._rank, self._log = rank, log

    def start(
        self, plan: CommPlan, stage: Stage, sent: Array, received: Array, *, forward: bool
    ) -> tuple[Transfer, Transfer]:
        """Fill what arrives."""
        received[...] = 0
        return Transfer(), Transfer()

    def start_broadcast(self, comm: Communicator, rows: Array, root: int) -> Transfer:
        """Fill the rows of another rank."""
        if root != self._rank:
            rows[...] = 0
        return Transfer()

    def start_reduce(self, comm: Communicator, partial: Array, total: Array, root: int) -> Transfer:
        """Fill the total of this rank."""
        if root == self._rank:
            total[...] = 0
        return Transfer()

    def combine(self, comm: Communicator, values: Array) -> None:
        """Leave what other ranks would add to."""
        self._log(Reduction(values.nbytes))


class CountedExchange:
    """A ghost exchange that tells a log of every start."""

    def __init__(
        self, inner: GhostExchange, log: Log, key: PatternKey, moment: Moment, *, pushed: bool
    ) -> None:
        self._inner, self._log, self._key, self._moment = inner, log, key, moment
        self._what: RowTransfer = "pushed" if pushed else "fetched"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def start_fetch(self, x: Array, *, keep: bool = False, columns: Packing | None = None) -> Fetch:
        """Start to deliver rows."""
        self._note(x, columns, reverse=False)
        return self._inner.start_fetch(x, keep=keep, columns=columns)

    def start_push(self, like: Array, combine: Combine, columns: Packing | None = None) -> Push:
        """Start to return partial sums."""
        self._note(like, columns, reverse=True)
        return self._inner.start_push(like, combine, columns)

    def _note(self, rows: Array, columns: Packing | None, *, reverse: bool) -> None:
        wire = self._inner.push_wire if reverse else self._inner.wire
        size = wire.way_bytes(rows, self._moment, columns, forward=not reverse)
        joined = self._inner.carrier.joined_row_bytes
        bits = self._moment.sum_bits if wire.has_sums(rows, forward=not reverse) else 0
        sums = (rows.shape[1], bits) if bits else None
        self._log(Movement(self._key, self._what, reverse, size, joined, sums))


class CountedSum(ReplicaSum):
    """A sum over replicas that tells a log of every start."""

    def __init__(self, log: Log, key: PatternKey, *made_of: Any) -> None:
        super().__init__(*made_of)
        *_, shares = made_of
        self._log, self._key, self._is_adjoint = log, key, shares.is_adjoint

    @override
    def bring(self, partial: Array, join: Combine) -> None:
        # The results are spread in the same width.
        if self.has_peers:
            size = partial.shape[1] * partial.itemsize
            self._log(Movement(self._key, "summed", self._is_adjoint, size))
        super().bring(partial, join)


@dataclass(frozen=True, eq=False)
class CountedRequest(RowRequest):
    """A request whose rows of other ranks are zeros; see `RowRequest`.

    `own` tells which of the wanted rows are this rank's, `own_rows` are their local rows. `key`
    says what the rows are, and `log` hears of them.
    """

    own: GlobalIndices
    own_rows: LocalIndices
    key: PatternKey
    log: Log

    def _note(self, array: Array, *, reverse: bool) -> None:
        self.log(Movement(self.key, "fetched", reverse, array.shape[1] * array.itemsize))

    @override
    def rows(self, array: Array) -> Array:
        self._note(array, reverse=False)
        # Packed as for other ranks, which takes its time and memory.
        np.ascontiguousarray(array[self.asked])
        arrived = np.zeros((len(self.owners), *array.shape[1:]), array.dtype)
        arrived[self.own] = array[self.own_rows]
        return arrived

    @override
    def add_back(self, array: Array) -> Array:
        self._note(array, reverse=True)
        total = np.zeros((self.num_rows, *array.shape[1:]), array.dtype)
        arrived = np.zeros((len(self.asked), *array.shape[1:]), array.dtype)
        total[self.asked] += arrived
        total[self.own_rows] += array[self.own]
        return total


@dataclass(frozen=True, eq=False)
class WantedRows:
    """The requests of all ranks for some rows, which one process knows.

    `starts` (blocks + 1,) int64 are rows of their owners, `wanted` for each block the increasing
    rows that its rank asks for, own ones too.
    """

    starts: Offsets
    wanted: Sequence[GlobalIndices]

    def traffic(self, replication: int) -> Traffic:
        """Return the rows that ranks get of each other; each replica asks for all."""
        blocks, num_rows = len(self.wanted), int(self.starts[-1])
        owner = RowMap(self.starts, 0).owner
        fetched = np.array([np.bincount(owner(each), minlength=blocks) for each in self.wanted])
        np.fill_diagonal(fetched, 0)
        fetched = np.repeat(fetched[None], replication, axis=0)
        sums = np.zeros((2, 2, blocks, replication, replication), np.int64)
        none = np.zeros(blocks, np.int64)
        return Traffic.of_all(fetched, np.zeros_like(fetched), sums, none, num_rows, num_rows)

    def of_rank(self, block: int, key: PatternKey) -> Callable[..., CountedRequest]:
        """Return what makes the request of a rank, of its ``comm`` and a ``log``."""
        row_map, rows = RowMap(self.starts, block), self.wanted[block]
        asked = [row_map.to_local(each[row_map.is_local(each)]) for each in self.wanted]
        own = np.flatnonzero(row_map.is_local(rows))
        return partial(
            CountedRequest,
            askers=np.repeat(np.arange(len(asked), dtype=np.int32), [len(e) for e in asked]),
            asked=np.concatenate(asked),
            owners=row_map.owner(rows),
            num_rows=row_map.num_local,
            own=own,
            own_rows=row_map.to_local(rows[own]),
            key=key,
        )
