"""Rows that every pair of ranks exchanges in one product, and what a run's exchanges make of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from hpcgnn.comm import Sent, are_joined
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.operator import OperatorSize
from hpcgnn.spmm import sum_bytes
from hpcgnn.typing import Array, LocalIndices, Offsets

PatternKey: TypeAlias = tuple[int | None, str]
"""The number of the aggregation that a pattern belongs to, and its direction."""

ALL: PatternKey = (None, "in")
"""The pattern of all nodes; it serves every aggregation, in both directions."""


def copies_key(copies: int) -> PatternKey:
    """Return the key of some copies of the graph side by side."""
    return (None, f"copies.{copies}")


def exact_key(key: PatternKey, method: str, num_relations: int) -> PatternKey:
    """Return the key of a pattern as reproducible attention moves its rows, by a method.

    By nodes there is one relation.
    """
    return (key[0], f"{key[1]}.{method}.{num_relations}")


RowTransfer: TypeAlias = Literal["fetched", "pushed", "summed"]
MOVEMENTS: tuple[RowTransfer, ...] = get_args(RowTransfer)
"""What travels in a product: rows and partial sums between block rows, and between replicas."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """The ranks of a run that is planned.

    `starts` (blocks + 1,) int64 are rows of the block rows; `exchange` has replication, method and
    schedule. `per_host` ranks of a host are numbered in a row; None: one host has all.
    """

    starts: Offsets
    exchange: ExchangeConfig
    per_host: int | None = None

    @property
    def num_blocks(self) -> int:
        """Block rows."""
        return len(self.starts) - 1

    def of_copies(self, copies: int) -> "Ranks":
        """Return the ranks as they hold copies of the graph side by side."""
        return replace(self, starts=copies * self.starts)

    def by(self, method: str) -> "Ranks":
        """Return the ranks as they move rows by a method, all at once."""
        plain = replace(self.exchange, method=method, schedule="resident", prefetch=0)
        return replace(self, exchange=plain)

    def handled(self, replica: int) -> Array:
        """Return a mask of the block columns that a replica multiplies."""
        blocks = np.arange(self.num_blocks)
        return np.asarray(blocks % self.exchange.replication == replica)

    def hosts(self, replica: int) -> LocalIndices:
        """Return (blocks,) int32: the host of each rank of a layer, numbered by first ranks."""
        hosts = self.hosts_of_grid[replica :: self.exchange.replication]
        return np.unique(hosts, return_inverse=True)[1].astype(np.int32)

    @property
    def hosts_of_grid(self) -> LocalIndices:
        """(blocks replication,) int32: the host of each rank of the grid."""
        ranks = np.arange(self.num_blocks * self.exchange.replication, dtype=np.int32)
        return ranks // np.int32(self.per_host or len(ranks))


@dataclass(frozen=True, eq=False)
class Traffic:
    """Rows of one forward product; its adjoint moves them the other way.

    Parameters
    ----------
    readers, owners
        (pairs,) int32 the pairs of block rows of which one gets something from the other.
    fetched, pushed
        (replication, pairs) int64: rows and partial sums that the reader gets from the owner in the
        layer of a replica.
    sums
        (2, 2, blocks, replication, replication) int64: rows that replicas of a block row send each
        other, to add up the product and its adjoint, to where a row is added up and from there.
    entries
        (blocks,) int64 non-zeros of each block row.
    by_terms
        Of sums of integers (replication, pairs) int64: how many of what is fetched, or pushed, have
        less than 2^l terms, and not less than half of it, by kind and l; empty: it is not known.
    """

    readers: LocalIndices
    owners: LocalIndices
    fetched: Array
    pushed: Array
    sums: Array
    entries: Array
    num_rows: int
    num_columns: int
    by_terms: Mapping[tuple[RowTransfer, int], Array] = field(default_factory=dict)

    @classmethod
    def of_all(
        cls,
        fetched: Array,
        pushed: Array,
        *sizes: Any,
        by_terms: Mapping[tuple[RowTransfer, int], Array] = MappingProxyType({}),
    ) -> "Traffic":
        """Return the traffic of (replication, blocks, blocks) rows from all to all."""
        readers, owners = np.nonzero((fetched + pushed).any(axis=0))
        between = (slice(None), readers, owners)
        ends = readers.astype(np.int32), owners.astype(np.int32)
        traffic = cls(*ends, fetched[between], pushed[between], *sizes)
        return replace(traffic, by_terms={key: rows[between] for key, rows in by_terms.items()})

    @property
    def num_blocks(self) -> int:
        """Block rows."""
        return len(self.entries)

    def by_block(self, ends: LocalIndices, values: Array) -> Array:
        """Return (replication, blocks) int64 the sums of values by the `ends` of their pairs."""
        sums = [np.bincount(ends, rows, self.num_blocks) for rows in values]
        return np.array(sums, np.int64).reshape(len(values), self.num_blocks)

    @property
    def num_moved(self) -> int:
        """Rows and partial sums in all."""
        return int(self.fetched.sum() + self.pushed.sum() + self.sums[0].sum())

    @property
    def operator_size(self) -> OperatorSize:
        """The size of the whole matrix, as its operators know it."""
        entries = int(self.entries.sum())
        return OperatorSize(self.num_rows, self.num_columns, entries, self.num_moved)


@dataclass
class Window:
    """When computing started an exchange, and when it waits for its end, in seconds.

    What is computed meanwhile may hide the messages.
    """

    began_s: float = 0.0
    ended_s: float = 0.0

    def later(self, seconds: float) -> "Window":
        """Return the window so many seconds later."""
        return Window(self.began_s + seconds, self.ended_s + seconds)


@dataclass(frozen=True)
class Movement:
    """One exchange, as all ranks run it.

    Parameters
    ----------
    pattern
        Key of the matrix.
    what
        Whether it moves what products fetch or what they push, or adds up over replicas.
    reverse
        Whether rows go from ghosts to owners; of a sum, whether it is of the adjoint.
    row_bytes
        Of one row, or the longest one.
    joined
        Bytes of a row of the first of the two exchanges of a product, whose short messages take
        those of the second with them; 0: it is in no such pair.
    sums
        Of sums of integers: numbers in a row, and the bits of each that is added up.
    """

    pattern: PatternKey
    what: RowTransfer
    reverse: bool
    row_bytes: int
    joined: int = 0
    sums: tuple[int, int] | None = None
    window: Window = field(default_factory=Window, compare=False)


@dataclass(frozen=True)
class Reduction:
    """A sum of arrays of equal size over ranks, that all ranks join in.

    Each rank hands in `num_bytes`.
    """

    num_bytes: int
    window: Window = field(default_factory=Window, compare=False)


Moves: TypeAlias = Sequence[Movement | Reduction]
"""The exchanges and sums of a part of a run."""


def in_turn(parts: Iterable[tuple[Moves, float]]) -> tuple[Movement | Reduction, ...]:
    """Return the moves of parts that follow each other; of each its moves and its seconds."""
    moves, start_s = [], 0.0
    for part, seconds in parts:
        moves += [replace(move, window=move.window.later(start_s)) for move in part]
        start_s += seconds
    return tuple(moves)


def sent_by_groups(
    groups: Iterable[Moves], traffic: Mapping[PatternKey, Traffic], replication: int
) -> Sent:
    """Return what each rank sends in the exchanges of its group; see `sent_by_rank`."""
    sums = [astuple(sent_by_rank(moves, traffic, replication)) for moves in groups]
    return Sent(*np.concatenate(sums, axis=1))


def sent_by_rank(
    moves: Iterable[Movement | Reduction], traffic: Mapping[PatternKey, Traffic], replication: int
) -> Sent:
    """Return what each rank of a grid sends in some exchanges.

    Rank ``block * replication + replica`` serves the block columns of its replica.
    """
    num_blocks = next(iter(traffic.values())).num_blocks
    totals = np.zeros((4, num_blocks * replication), np.int64)
    for move in moves:
        if isinstance(move, Reduction):
            totals += np.array([[0], [move.num_bytes], [move.num_bytes], [1]])
            continue
        rows, messages, sizes, arrived = _sent(move, traffic[move.pattern])
        totals += np.array([rows, sizes, arrived, messages])
    return Sent(*totals)


def between_hosts(traffic: Mapping[PatternKey, Traffic], ranks: Ranks) -> dict[PatternKey, Traffic]:
    """Return the traffic that leaves a host."""
    copies = ranks.exchange.replication
    hosts = np.stack([ranks.hosts_of_grid[replica::copies] for replica in range(copies)])
    apart = hosts.T[:, :, None] != hosts.T[:, None, :]
    leaving = {}
    for key, whole in traffic.items():
        away = hosts[:, whole.readers] != hosts[:, whole.owners]
        leaving[key] = replace(
            whole,
            fetched=whole.fetched * away,
            pushed=whole.pushed * away,
            sums=whole.sums * apart,
            by_terms={terms: rows * away for terms, rows in whole.by_terms.items()},
        )
    return leaving


def _sent(move: Movement, traffic: Traffic) -> tuple[Array, Array, Array, Array]:
    """Return the rows, messages and bytes that each rank sends, and the bytes that it receives."""
    if move.what == "summed":
        sums = traffic.sums[int(move.reverse)]
        out, into = (sums.sum(axis=(0, axis)).reshape(-1) for axis in (3, 2))
        messages = (sums > 0).sum(axis=(0, 3)).reshape(-1)
        return out, messages, out * move.row_bytes, into * move.row_bytes
    is_pushed = move.what == "pushed"
    rows_of = traffic.pushed if is_pushed else traffic.fetched
    messages_of = rows_of > 0
    if move.joined and move.reverse:
        # The sums are the second of two exchanges, and come in messages of the first.
        messages_of &= ~are_joined(traffic.fetched, traffic.pushed, move.joined)
    bytes_of = rows_of * move.row_bytes
    if move.sums is not None and traffic.by_terms:
        width, bits = move.sums
        bytes_of = np.zeros_like(rows_of)
        for (what, log_terms), rows in traffic.by_terms.items():
            bytes_of += (what == move.what) * rows * width * sum_bytes(np.array(log_terms), bits)
    owners, readers = (
        tuple(
            traffic.by_block(ends, numbers).T.reshape(-1)
            for numbers in (rows_of, messages_of, bytes_of)
        )
        for ends in (traffic.owners, traffic.readers)
    )
    # A fetch takes rows from owners, a push brings partial sums to owners: of fetched rows the
    # block column is the owner, of pushed ones the block row.
    outward = move.reverse == is_pushed
    (*out, sizes), (*_, arrived) = (owners, readers) if outward else (readers, owners)
    rows, messages = out
    return rows, messages, sizes, arrived
