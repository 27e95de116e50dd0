"""Rows exchanged by every pair of ranks in a product, and the traffic of a run's exchanges."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from hpcgnn.comm import Sent, are_joined
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.operator import OperatorSize
from hpcgnn.spmm import sum_bytes
from hpcgnn.typing import Array, LocalIndices, Offsets

PatternKey: TypeAlias = tuple[int | None, str]
"""The number of the aggregation that a pattern belongs to (None: all), and its direction."""

ALL: PatternKey = (None, "in")
"""The pattern of all nodes, which serves every aggregation in both directions."""


def copies_key(copies: int) -> PatternKey:
    """Return the key of the pattern of copies of the graph side by side."""
    return (None, f"copies.{copies}")


def exact_key(key: PatternKey, method: str, num_relations: int) -> PatternKey:
    """Return the key of a pattern whose rows reproducible attention moves by a method.

    `num_relations` is 1 if rows are by node.
    """
    return (key[0], f"{key[1]}.{method}.{num_relations}")


RowTransfer: TypeAlias = Literal["fetched", "pushed", "summed"]
MOVEMENTS: tuple[RowTransfer, ...] = get_args(RowTransfer)
"""Kinds of rows that move in a product: rows and sums between block rows, sums of replicas."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """The ranks of a planned run.

    `starts` (blocks + 1,) int64 are the first rows of the block rows; `exchange` has replication,
    method and schedule. `per_host` consecutive ranks are on a host; None: one host has all.
    """

    starts: Offsets
    exchange: ExchangeConfig
    per_host: int | None = None

    @property
    def num_blocks(self) -> int:
        """Number of block rows."""
        return len(self.starts) - 1

    def of_copies(self, copies: int) -> "Ranks":
        """Return the ranks holding copies of the graph side by side."""
        return replace(self, starts=copies * self.starts)

    def by(self, method: str) -> "Ranks":
        """Return the ranks moving rows by `method`, all at once."""
        plain = replace(self.exchange, method=method, schedule="resident", prefetch=0)
        return replace(self, exchange=plain)

    def hosts(self, replica: int) -> LocalIndices:
        """Return (blocks,) int32 the host of each rank of a layer, numbered by first ranks."""
        hosts = self.hosts_of_grid[replica :: self.exchange.replication]
        return np.unique(hosts, return_inverse=True)[1].astype(np.int32)

    @property
    def hosts_of_grid(self) -> LocalIndices:
        """(blocks * replication,) int32 host of each rank of the grid."""
        ranks = np.arange(self.num_blocks * self.exchange.replication, dtype=np.int32)
        return ranks // np.int32(self.per_host or len(ranks))


@dataclass(frozen=True, eq=False)
class BlockPairs:
    """Rows that some pairs of block rows exchange in one forward product.

    Either a list of pairs, or a table of m consecutive readers and all owners, in which "pairs"
    below means (m, blocks).

    `readers` and `owners` (pairs,) int32, in a table (m, 1) and (1, blocks), are the block rows
    that receive and send. `fetched` and `pushed` (replication, pairs) integers are the rows and
    partial sums that the reader gets from the owner in the layer of a replica. For sums of
    integers, `by_terms` is, by kind and l, (replication, pairs) int64 the number of rows fetched or
    pushed with 2^(l-1) to 2^l - 1 terms; empty if not known.
    """

    readers: LocalIndices
    owners: LocalIndices
    fetched: Array
    pushed: Array
    by_terms: Mapping[tuple[RowTransfer, int], Array] = field(default_factory=dict)

    @classmethod
    def of_all(
        cls,
        fetched: Array,
        pushed: Array,
        by_terms: Mapping[tuple[RowTransfer, int], Array] = MappingProxyType({}),
    ) -> "BlockPairs":
        """Return a list of the pairs of (replication, blocks, blocks) that exchange something."""
        readers, owners = np.nonzero((fetched + pushed).any(axis=0))
        between = (slice(None), readers, owners)
        ends = readers.astype(np.int32), owners.astype(np.int32)
        terms = {key: rows[between] for key, rows in by_terms.items()}
        return cls(*ends, fetched[between], pushed[between], terms)

    @classmethod
    def table(cls, first: int, fetched: Array, pushed: Array) -> "BlockPairs":
        """Return a table of numbers (replication, m, blocks) from the reader `first` on."""
        _, readers, owners = fetched.shape
        ends = np.arange(first, first + readers, dtype=np.int32), np.arange(owners, dtype=np.int32)
        return cls(ends[0][:, None], ends[1][None], fetched, pushed)

    def add_sums(self, values: Array, by_owner: Array, by_reader: Array) -> None:
        """Add values (replication, pairs) to sums (replication, blocks) of block rows."""
        if self.readers.ndim > 1:
            by_owner += values.sum(axis=1, dtype=np.int64)
            by_reader[:, self.readers[:, 0]] += values.sum(axis=2, dtype=np.int64)
            return
        for ends, sums in ((self.owners, by_owner), (self.readers, by_reader)):
            for total, rows in zip(sums, values, strict=True):
                total += np.bincount(ends, rows, len(total)).astype(np.int64)

    def between(self, hosts: LocalIndices) -> "BlockPairs":
        """Return the rows that move between hosts; `hosts` are (replication, blocks)."""
        away = hosts[:, self.readers] != hosts[:, self.owners]
        return replace(
            self,
            fetched=self.fetched * away,
            pushed=self.pushed * away,
            by_terms={terms: rows * away for terms, rows in self.by_terms.items()},
        )


@dataclass(frozen=True, eq=False)
class Traffic:
    """Rows moved in one forward product; its adjoint moves them the other way.

    `pieces` returns the pairs of block rows in pieces, since a list of all pairs of many ranks
    would not fit into memory. `sums` (2, 2, blocks, replication, replication) int64 are rows that
    replicas of a block row send each other: for the product and its adjoint, to each row's home and
    from there. `entries` (blocks,) int64 is the number of non-zeros of each block row.
    """

    pieces: Callable[[], Iterable[BlockPairs]]
    sums: Array
    entries: Array
    num_rows: int
    num_columns: int

    @classmethod
    def of_pairs(cls, pairs: BlockPairs, *sizes: Any) -> "Traffic":
        """Return the traffic of pairs that are in memory."""
        return cls(lambda: [pairs], *sizes)

    @property
    def num_blocks(self) -> int:
        """Number of block rows."""
        return len(self.entries)

    def by_block(self, value: Callable[[BlockPairs], Array]) -> tuple[Array, Array]:
        """Return (replication, blocks) int64 sums over pairs, by owner and by reader.

        `value` maps pairs to the numbers (replication, pairs) to add up.
        """
        by_owner, by_reader = np.zeros((2, self.sums.shape[-1], self.num_blocks), np.int64)
        for pairs in self.pieces():
            pairs.add_sums(value(pairs), by_owner, by_reader)
        return by_owner, by_reader

    @cached_property
    def moved(self) -> Mapping[RowTransfer, tuple[tuple[Array, Array], ...]]:
        """For "fetched" and "pushed": rows and messages, each as returned by `by_block`."""
        return {
            "fetched": (
                self.by_block(lambda pairs: pairs.fetched),
                self.by_block(lambda pairs: pairs.fetched > 0),
            ),
            "pushed": (
                self.by_block(lambda pairs: pairs.pushed),
                self.by_block(lambda pairs: pairs.pushed > 0),
            ),
        }

    def served(self, owner: int) -> Array:
        """Return (blocks,) int64 the rows that each block row fetches from one, by all replicas."""
        _, readers = self.by_block(lambda pairs: pairs.fetched * (pairs.owners == owner))
        return np.asarray(readers.sum(axis=0))

    @cached_property
    def knows_terms(self) -> bool:
        """Whether the numbers of terms of sums of integers are known."""
        return any(pairs.by_terms for pairs in self.pieces())

    @cached_property
    def num_moved(self) -> int:
        """Total number of rows and partial sums."""
        between_blocks = sum(int(rows[0].sum()) for rows, _ in self.moved.values())
        return between_blocks + int(self.sums[0].sum())

    @property
    def operator_size(self) -> OperatorSize:
        """The size of the whole matrix in the form that operators have."""
        entries = int(self.entries.sum())
        return OperatorSize(self.num_rows, self.num_columns, entries, self.num_moved)


@dataclass
class ExchangeTimes:
    """The times in seconds at which an exchange is started and at which it is waited for.

    Computing in between may hide the messages.
    """

    began_s: float = 0.0
    ended_s: float = 0.0

    def later(self, seconds: float) -> "ExchangeTimes":
        """Return the window shifted by `seconds`."""
        return ExchangeTimes(self.began_s + seconds, self.ended_s + seconds)


@dataclass(frozen=True)
class Movement:
    """One exchange, run by all ranks.

    `transfer` tells whether it is for a product's fetched rows, its pushed rows, or the sum over
    replicas; `reverse`, whether rows go from ghosts to owners, or whether a sum is that of the
    adjoint. `row_bytes` are those of one row, or of the longest. If short messages of the two
    exchanges of a product are joined, `joined` is the bytes of a row of the first; otherwise 0. For
    sums of integers, `sums` are the numbers in a row, and the bits of each term.
    """

    pattern: PatternKey
    transfer: RowTransfer
    reverse: bool
    row_bytes: int
    joined: int = 0
    sums: tuple[int, int] | None = None
    window: ExchangeTimes = field(default_factory=ExchangeTimes, compare=False)


@dataclass(frozen=True)
class AllReduction:
    """A sum over all ranks of arrays of equal size, to which each contributes `num_bytes`."""

    num_bytes: int
    window: ExchangeTimes = field(default_factory=ExchangeTimes, compare=False)


Moves: TypeAlias = Sequence[Movement | AllReduction]
"""The exchanges and sums of a part of a run."""


def in_turn(parts: Iterable[tuple[Moves, float]]) -> tuple[Movement | AllReduction, ...]:
    """Concatenate the moves of consecutive parts, which are given as moves and seconds."""
    moves, start_s = [], 0.0
    for part, seconds in parts:
        moves += [replace(move, window=move.window.later(start_s)) for move in part]
        start_s += seconds
    return tuple(moves)


def sent_by_groups(
    groups: Iterable[Moves], traffic: Mapping[PatternKey, Traffic], replication: int
) -> Sent:
    """Return the traffic of each rank in the exchanges of its group; see `sent_by_rank`."""
    sums = [astuple(sent_by_rank(moves, traffic, replication)) for moves in groups]
    return Sent(*np.concatenate(sums, axis=1))


def sent_by_rank(
    moves: Iterable[Movement | AllReduction],
    traffic: Mapping[PatternKey, Traffic],
    replication: int,
) -> Sent:
    """Return the traffic of each rank of a grid in some exchanges.

    Rank ``block * replication + replica`` handles the block columns of its replica.
    """
    num_blocks = next(iter(traffic.values())).num_blocks
    totals = np.zeros((4, num_blocks * replication), np.int64)
    for move in moves:
        if isinstance(move, AllReduction):
            totals += np.array([[0], [move.num_bytes], [move.num_bytes], [1]])
            continue
        rows, messages, sizes, arrived = _sent(move, traffic[move.pattern])
        totals += np.array([rows, sizes, arrived, messages])
    return Sent(*totals)


def between_hosts(traffic: Mapping[PatternKey, Traffic], ranks: Ranks) -> dict[PatternKey, Traffic]:
    """Return the traffic between hosts."""
    copies = ranks.exchange.replication
    hosts = np.stack([ranks.hosts_of_grid[replica::copies] for replica in range(copies)])
    apart = hosts.T[:, :, None] != hosts.T[:, None, :]
    leaving = {}
    for key, whole in traffic.items():
        leaving[key] = replace(
            whole,
            pieces=partial(_between, whole.pieces, hosts),
            sums=whole.sums * apart,
        )
    return leaving


def _between(
    pieces: Callable[[], Iterable[BlockPairs]], hosts: LocalIndices
) -> Iterator[BlockPairs]:
    for pairs in pieces():
        yield pairs.between(hosts)


def _sent(move: Movement, traffic: Traffic) -> tuple[Array, Array, Array, Array]:
    """Return the rows, messages and bytes that each rank sends, and the bytes that it receives."""
    if move.transfer == "summed":
        sums = traffic.sums[int(move.reverse)]
        out, into = (sums.sum(axis=(0, axis)).reshape(-1) for axis in (3, 2))
        messages = (sums > 0).sum(axis=(0, 3)).reshape(-1)
        return out, messages, out * move.row_bytes, into * move.row_bytes
    is_pushed = move.transfer == "pushed"
    rows, messages = traffic.moved[move.transfer]
    if move.joined and move.reverse:
        # In reverse it is the second of the two exchanges, whose short messages are joined.
        messages = traffic.by_block(partial(_apart, move.transfer, move.joined))
    sizes = tuple(side * move.row_bytes for side in rows)
    if move.sums is not None and traffic.knows_terms:
        sizes = traffic.by_block(partial(_bytes_of_terms, move.transfer, move.sums))
    # A product's rows and sums go from owners to readers: fetches forward, pushes in reverse. Its
    # adjoint moves both the other way.
    end = int(move.reverse != is_pushed)
    out, messages_out, bytes_out, bytes_in = (
        side.T.reshape(-1) for side in (rows[end], messages[end], sizes[end], sizes[1 - end])
    )
    return out, messages_out, bytes_out, bytes_in


def _apart(transfer: RowTransfer, row_bytes: int, pairs: BlockPairs) -> Array:
    """Return (replication, pairs) whether there is a message that is not joined with another."""
    rows: Array = getattr(pairs, transfer)
    # Widen first: tables may have narrow dtypes.
    both = pairs.fetched.astype(np.int64), pairs.pushed.astype(np.int64)
    return (rows > 0) & ~are_joined(*both, row_bytes)


def _bytes_of_terms(transfer: RowTransfer, sums: tuple[int, int], pairs: BlockPairs) -> Array:
    """Return (replication, pairs) int64 bytes of sums of integers; `sums` as in `Movement`."""
    width, bits = sums
    size = np.zeros_like(pairs.fetched)
    for (kind, log_terms), rows in pairs.by_terms.items():
        size += (kind == transfer) * rows * width * sum_bytes(np.array(log_terms), bits)
    return size
