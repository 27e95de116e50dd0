"""Exact communication volume of a partition in rows per aggregation, counted serially."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from hpcgnn import kernels
from hpcgnn.partition.parts import Partition
from hpcgnn.partition.pattern import CSRGraph
from hpcgnn.storage import row_positions
from hpcgnn.typing import Array, LocalIndices, Offsets

Exchange: TypeAlias = Literal["aware", "push", "joint"]
EXCHANGES: tuple[Exchange, ...] = ("aware", "push", "joint")


@dataclass(frozen=True)
class VolumeMetrics:
    """The rows exchanged in one forward aggregation by fetching, with one rank for each part.

    Row j is sent once to every other part that has a non-zero in column j. `edge_cut` is the number
    of non-zeros whose row and column are in different parts (an undirected edge counts twice). Rows
    are counted in total and for the busiest sender, receiver and ordered pair. `imbalance` is the
    maximum over parts of non-zeros / max(average, heaviest row of the part) - 1.
    """

    edge_cut: int
    total_rows: int
    max_send_rows: int
    max_recv_rows: int
    max_pair_rows: int
    imbalance: float
    parts: int

    @classmethod
    def of(
        cls, edge_cut: int, rows: Array, most: int, work: Offsets, heaviest: Offsets
    ) -> "VolumeMetrics":
        """Return the metrics from the `rows` (2, K) that parts send and receive; see `work_of`."""
        sent, received = rows
        largest = int(sent.max()), int(received.max()), most
        return cls(edge_cut, int(sent.sum()), *largest, imbalance_of(work, heaviest), len(work))


class _Traffic:
    """Counts the rows that parts receive, one receiver after another."""

    def __init__(self, num_parts: int) -> None:
        self.rows, self.max_pair = np.zeros((2, num_parts), np.int64), 0

    def receive(self, part: int, from_part: Offsets) -> None:
        """Count the rows (K,) that a part receives from each."""
        self.rows[0] += from_part
        self.rows[1, part] = from_part.sum()
        self.max_pair = max(self.max_pair, int(from_part.max()))


def _check_parts(graph: CSRGraph, part: LocalIndices, num_parts: int) -> Partition:
    """Return the partition; raise ValueError for a part array that does not fit the graph."""
    partition = Partition(part, num_parts)
    partition.validate()
    if part.size != graph.num_nodes:
        raise ValueError(f"{part.size} part numbers for {graph.num_nodes} nodes")
    return partition


def _rows_by_part(
    graph: CSRGraph, order: Offsets, starts: Offsets
) -> Iterator[tuple[int, Offsets, Array]]:
    """Yield each part, its rows, and the columns of these rows in order."""
    for part in range(starts.size - 1):
        rows = order[starts[part] : starts[part + 1]]
        yield part, rows, graph.indices[row_positions(graph.indptr, rows)]


def measure(graph: CSRGraph, row_part: LocalIndices, num_parts: int) -> VolumeMetrics:
    """Return the volume metrics of `row_part`, int32[n], on `graph`.

    Memory is O(n) plus a few times the non-zeros of one part. A diagonal entry changes nothing.
    Raises ValueError for a part array that does not fit the graph.
    """
    partition = _check_parts(graph, row_part, num_parts)
    edge_cut, traffic = 0, _Traffic(num_parts)
    order, starts = partition.permutation(), partition.row_starts()
    for part, _, columns in _rows_by_part(graph, order, starts):
        outside = columns[row_part[columns] != part]
        # A row is sent to a part once, however many of the part's rows read it.
        ghosts = np.unique(outside)
        traffic.receive(part, np.bincount(row_part[ghosts], minlength=num_parts))
        edge_cut += outside.size
    work = work_of(np.diff(graph.indptr), row_part, num_parts)
    return VolumeMetrics.of(edge_cut, traffic.rows, traffic.max_pair, *work)


def work_of(row_lengths: Offsets, row_part: LocalIndices, num_parts: int) -> Array:
    """Return (2, K) int64 the non-zeros of each part, and those of its heaviest row."""
    # `bincount` with weights sums in float64, which is inexact above 2**53.
    work, heaviest = result = np.zeros((2, num_parts), np.int64)
    np.add.at(work, row_part, row_lengths)
    np.maximum.at(heaviest, row_part, row_lengths)
    return result


def imbalance_of(work: Offsets, heaviest: Offsets) -> float:
    """Return the maximum over parts of work over the least that is possible, minus one."""
    total = int(work.sum())
    least = np.maximum(total / len(work), heaviest)
    return float(np.max(work / least) - 1) if total else 0.0


def exchange_volume(
    graph: CSRGraph, part: LocalIndices, num_parts: int, exchange: Exchange = "aware"
) -> dict[str, int]:
    """Return the rows that `exchange` moves in one forward aggregation, with one rank per part.

    Let p own the rows and q the columns of a block. With ``aware``, p fetches every non-empty
    column of it from q. With ``push``, q multiplies the block and sends a partial sum for every
    non-empty row. With ``joint``, p fetches the columns of a minimum vertex cover of the block, and
    the entries in the cover's rows are pushed. Fetched rows and partial sums both travel from q to
    p and are equally wide, so q sends p as many rows as the cover has members. A backward
    aggregation moves the same rows the other way.

    `part` is int32[n]; parts may be empty, and entries inside a part move nothing. Raises
    `ValueError` for an unknown exchange, or a part array that does not fit the graph.

    The result has ``rows_total``; ``rows_max_send`` and ``rows_max_recv`` of the busiest sender and
    receiver; ``rows_max_pair`` of the busiest ordered pair; and ``lower_bound``, the least total of
    any exchange of rows or partial sums, which equals joint's unless a block was too large for a
    minimum cover (see `hpcgnn.kernels.vertex_cover`).
    """
    if exchange not in EXCHANGES:
        raise ValueError(f"exchange must be one of {', '.join(EXCHANGES)}, not {exchange!r}")
    partition = _check_parts(graph, part, num_parts)
    order, starts = partition.permutation(), partition.row_starts()
    position = np.empty_like(order)
    position[order] = np.arange(order.size)
    traffic, lower_bound = _Traffic(num_parts), 0
    for p, rows, columns in _rows_by_part(graph, order, starts):
        lengths = graph.indptr[rows + 1] - graph.indptr[rows]
        counts, bound = _received(lengths, position[columns], starts, p, exchange)
        traffic.receive(p, counts)
        lower_bound += bound
    return {
        "rows_total": int(traffic.rows[0].sum()),
        "rows_max_send": int(traffic.rows[0].max()),
        "rows_max_recv": int(traffic.rows[1].max()),
        "rows_max_pair": traffic.max_pair,
        "lower_bound": lower_bound,
    }


def _received(
    lengths: Offsets, columns: Offsets, starts: Offsets, p: int, exchange: Exchange
) -> tuple[Offsets, int]:
    """Return the rows that part p receives from each part, and a lower bound of their sum.

    `columns` are the columns of rows with `lengths` entries, numbered part after part; `starts` are
    the first numbers of the parts.
    """
    outside = (columns < starts[p]) | (columns >= starts[p + 1])
    row_of_entry = np.repeat(np.arange(lengths.size), lengths)[outside]
    ghosts, ghost_of_entry = np.unique(columns[outside], return_inverse=True)
    indptr = np.searchsorted(row_of_entry, np.arange(lengths.size + 1)).astype(np.int64)
    ghost_starts = np.searchsorted(ghosts, starts).astype(np.int64)
    cover = kernels.vertex_cover(indptr, ghost_of_entry.astype(np.int32), ghost_starts)
    bound = int(cover.lower_bound.sum())
    if exchange == "joint":
        return cover.fetched_rows + cover.pushed_rows, bound
    if exchange == "aware":
        return np.diff(ghost_starts), bound
    num_parts = starts.size - 1
    owner = np.repeat(np.arange(num_parts), np.diff(ghost_starts))[ghost_of_entry]
    pairs = np.unique(row_of_entry * num_parts + owner)
    return np.bincount(pairs % num_parts, minlength=num_parts), bound
