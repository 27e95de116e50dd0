"""Clustering over ranks: nodes join neighbours, clusters become the nodes of a smaller graph.

Size-constrained clusters in the manner of label propagation (Meyerhenke, Sanders and Schulz,
"Parallel graph partitioning for complex networks", IEEE TPDS 28, 2017), cut short after few
members: in every round half of the nodes, chosen by a hash, request to join the cluster they are
connected with most; the rank of the cluster's first node accepts as many as fit. What a full
cluster refuses in the last round becomes clusters of its own: leaves of one hub belong together.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hpcgnn.comm import (
    CommPlan,
    Communicator,
    ProcessGrid,
    RowMap,
    RowRequest,
    all_ranks,
    exclusive_sum,
    redistribute,
    rows_of,
)
from hpcgnn.comm.row_map import distinct, numbered
from hpcgnn.kernels.mixing import GOLDEN, split_mix
from hpcgnn.partition import _volpart
from hpcgnn.partition.pattern import BlockRow, row_blocks
from hpcgnn.spmd import collective
from hpcgnn.storage import row_positions
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Offsets

ROUNDS = 4
MOST_JOINING = 3
"""Nodes that may join another in one level; clusters that grow faster lose much in volume."""

HEAVIEST_EDGE = 2**20
"""Weights above this are cut down to it, so that sums of them fit METIS's integers."""

_SLICES = 16

Entries: TypeAlias = tuple[Array, Array]
"""Keys and weights of entries, see `_added_up`."""


@dataclass(frozen=True, eq=False)
class Level:
    """Rows of a symmetric weighted graph without loops, and the plan that brings ghosts' data.

    `row_map` and `plan` say who owns which nodes; local columns are own nodes, then ghosts.
    `indptr` (num_local + 1,) is int64, `columns` (entries,) int32 local, `edges` (entries,) int32
    weights, 0 for loops, `weights` (num_local,) int64 of the nodes.
    """

    row_map: RowMap
    plan: CommPlan
    indptr: Offsets
    columns: LocalIndices
    edges: LocalIndices
    weights: Offsets

    @collective
    def with_ghosts(self, values: Array) -> Array:
        """Return `values` (num_local,) with those of the ghosts behind them."""
        ghosts = np.empty((self.plan.num_ghosts, 1), values.dtype)
        self.plan.start_forward(values[self.plan.send_rows][:, None], ghosts).wait()
        return np.concatenate([values, ghosts[:, 0]])

    def degrees(self) -> FloatArray:
        """Return the sum of the weights at each own node, float64."""
        sums = np.zeros(self.row_map.num_local)
        for first, stop in row_blocks(self.indptr, step_entries(self.indptr)):
            bounds = self.indptr[first : stop + 1]
            rows = np.repeat(np.arange(stop - first), np.diff(bounds))
            sums[first:stop] = np.bincount(rows, self.edges[bounds[0] : bounds[-1]], stop - first)
        return sums

    @collective
    def shares(self) -> Array:
        """Return the reciprocals of the degrees, float64, with those of the ghosts behind them."""
        with np.errstate(divide="ignore"):
            return self.with_ghosts(1 / self.degrees())


@collective
def finest_level(
    grid: ProcessGrid, rows: BlockRow, weights: Offsets, density: float, seed: int
) -> Level:
    """Return a sample of the pattern of rows, with its transpose where it is not symmetric.

    An edge stays with chance min(1, density / degree + density / degree), of both its ends, and
    weighs the reciprocal of it: the mean of every cut stays. With an infinite `density` all stay.
    """
    row_map = rows.row_map
    row, column, edges = _sampled_rows(grid.layer, rows, density, seed)
    indptr = offsets_of(row, row_map.num_local)
    del row
    if rows.symmetric:
        return _level(grid, row_map, (indptr, column, edges), weights)
    sample = BlockRow(row_map, indptr, column, symmetric=False)
    slices = (_both_ways(sample, edges, number) for number in range(_SLICES))
    return _level(grid, row_map, _added_up(grid.layer, row_map, slices), weights)


@collective
def _sampled_rows(
    comm: Communicator, rows: BlockRow, density: float, seed: int
) -> tuple[LocalIndices, Array, LocalIndices]:
    """Return the local rows, columns and weights of a sample of the non-zeros."""
    row_map, columns = rows.row_map, rows.columns
    names = distinct(columns, row_map.num_rows).astype(np.int64)
    request = RowRequest.make(comm, row_map, names)
    degree = np.diff(rows.indptr).astype(np.float64)
    is_dense = row_map.num_rows <= 4 * len(columns)
    if not is_dense:
        columns = numbered(names, np.arange(len(names), dtype=np.int32), columns)
    if not rows.symmetric:
        counts = np.bincount(columns, minlength=row_map.num_rows if is_dense else len(names))
        degree += request.add_back((counts[names] if is_dense else counts).astype(np.float64))
    with np.errstate(divide="ignore"):
        share, of_names = 1 / degree, 1 / request.rows(degree)
    if is_dense:
        by_column = np.zeros(row_map.num_rows)
        by_column[names] = of_names
        names, of_names = np.empty(0, np.int64), by_column
    ones = np.empty(0, np.int32)
    terms = (row_map.start, density, HEAVIEST_EDGE, seed)
    row, column, edges = _volpart.sample_edges(
        rows.indptr, columns, ones, names, share, of_names, terms
    )
    return row, column if is_dense else names[column], edges


def offsets_of(rows: LocalIndices, num_rows: int) -> Offsets:
    """Return where the entries of each row begin, int64, of the increasing rows of entries."""
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num_rows))])


def _both_ways(rows: BlockRow, edges: LocalIndices, number: int) -> Iterator[Entries]:
    """Yield the non-zeros and their weights, and their reverses, whose rows are in a slice."""
    row_map, first = rows.row_map, 0
    for row, column in rows.entries(step_entries(rows.indptr)):
        weights = edges[first : first + len(row)]
        for source, target in ((row, column), (column, row)):
            selected = _slice_of(row_map, source) == number
            keys = source[selected] * max(row_map.num_rows, 1) + target[selected]
            yield keys, weights[selected]
        first += len(row)


def step_entries(indptr: Offsets) -> int:
    """Return how many entries to work on at a time: few beside those of a rank, yet thousands."""
    return int(np.clip(indptr[-1] >> 5, 1 << 14, 1 << 18))


def _slice_of(row_map: RowMap, rows: GlobalIndices) -> Array:
    """Return the slice, of `_SLICES` equal ones of its owner's rows, that each row is in."""
    owners = row_map.owner(rows)
    sizes = np.maximum(np.diff(row_map.starts), 1)
    return ((rows - row_map.starts[owners]) * _SLICES // sizes[owners]).astype(np.int8)


@collective
def _added_up(
    comm: Communicator, row_map: RowMap, slices: Iterable[Iterator[Entries]]
) -> tuple[Offsets, Array, LocalIndices]:
    """Return CSR arrays with global columns of the entries of all ranks; equal ones are added up.

    The key of an entry is its global row times the number of all rows, plus its column. A slice of
    each rank's rows is gathered after the other, a step at a time: sorting takes several times the
    memory of what is sorted.
    """
    num_rows = max(row_map.num_rows, 1)
    kind = np.int32 if num_rows <= np.iinfo(np.int32).max else np.int64
    kept_columns, kept_edges = [np.empty(0, kind)], [np.empty(0, np.int32)]
    counts = np.zeros(row_map.num_local, np.int64)
    none: Entries = np.empty(0, np.int64), np.empty(0, np.int32)
    for steps in slices:
        arrived: list[tuple[Array, ...]] = [none]
        # All ranks send equally often, some of them nothing at last.
        while not all_ranks(comm, (step := next(steps, None)) is None):
            keys, edges = none if step is None else _sums_by_key(*step)
            arrived.append(redistribute(comm, row_map.owner(keys // num_rows), keys, edges))
        keys, edges = (np.concatenate([piece[k] for piece in arrived]) for k in range(2))
        del arrived
        keys, edges = _sums_by_key(keys, edges)
        rows, columns = np.divmod(keys, num_rows)
        counts += np.bincount(rows - row_map.start, minlength=row_map.num_local)
        kept_columns.append(columns.astype(kind))
        kept_edges.append(edges)
        del keys, rows, columns
    columns = np.concatenate(kept_columns)
    del kept_columns
    return np.concatenate([[0], np.cumsum(counts)]), columns, np.concatenate(kept_edges)


def _sums_by_key(keys: GlobalIndices, edges: LocalIndices) -> Entries:
    """Return each key once, increasing, and the sum of its edges."""
    order = np.argsort(keys)
    keys, edges = keys[order], edges[order]
    del order
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    if len(first) == 0:
        return keys, edges
    total = np.add.reduceat(edges, first, dtype=np.int64)
    return keys[first], np.minimum(total, HEAVIEST_EDGE).astype(np.int32)


@collective
def _level(
    grid: ProcessGrid,
    row_map: RowMap,
    entries: tuple[Offsets, Array, LocalIndices],
    weights: Offsets,
) -> Level:
    """Return the level of CSR arrays with global columns; loops weigh nothing."""
    indptr, columns, edges = entries
    names = distinct(columns, row_map.num_rows).astype(np.int64)
    local = row_map.is_local(names)
    ghosts = names[~local]
    ghost_numbers = row_map.num_local + np.cumsum(~local) - 1
    local_numbers = np.where(local, names - row_map.start, ghost_numbers).astype(np.int32)
    # They take the place of the global ones where these are as wide.
    numbers = numbered(
        names, local_numbers, columns, columns if columns.dtype == np.int32 else None
    )
    del names, local, ghost_numbers, local_numbers
    for first, stop in row_blocks(indptr, step_entries(indptr)):
        step = slice(int(indptr[first]), int(indptr[stop]))
        rows = np.repeat(np.arange(first, stop, dtype=np.int32), np.diff(indptr[first : stop + 1]))
        edges[step][rows == numbers[step]] = 0
    plan = CommPlan.from_ghosts(grid, row_map, ghosts)
    return Level(row_map, plan, indptr, numbers, edges, weights)


def mixed(values: GlobalIndices, salt: int) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    """Return 64 random bits for each number, the same on every rank (SplitMix64)."""
    step = np.uint64(salt * GOLDEN % 2**64)
    return split_mix((values.astype(np.uint64) + step) * np.uint64(GOLDEN))


class _Clustering:
    """The cluster of each node, named by its first node, while nodes join."""

    def __init__(self, comm: Communicator, level: Level, max_weight: int, salt: int) -> None:
        self._comm, self._level, self._max_weight, self._salt = comm, level, max_weight, salt
        row_map = level.row_map
        self.leader = np.arange(row_map.start, row_map.stop)
        self._settled = np.zeros(row_map.num_local, bool)
        # Of the clusters that own nodes lead.
        self._weight = level.weights.copy()
        self._joined = np.zeros(row_map.num_local, np.int64)
        self._share = level.shares()

    @collective
    def let_join(self, number: int, *, last: bool) -> None:
        """Let half of the nodes ask to join a cluster, a round."""
        level, row_map = self._level, self._level.row_map
        asks = (mixed(self.leader, self._salt + number) & np.uint64(1)).astype(bool)
        asks &= ~self._settled & (level.weights <= self._max_weight)
        # A node that asks leads nothing this round; full clusters are asked in the last one only.
        full = (self._joined >= MOST_JOINING) | (self._weight >= self._max_weight)
        is_full = rows_of(self._comm, row_map, self.leader, full)
        leader = level.with_ghosts(self.leader)
        open_to = level.with_ghosts((~asks & (~is_full | last)).astype(np.uint8))
        target = _volpart.best_cluster(
            level.indptr,
            level.columns,
            level.edges,
            self._share,
            leader,
            open_to,
            asks.astype(np.uint8),
            self._salt,
        )
        nodes = np.flatnonzero(target >= 0)
        self._answer(nodes, target[nodes], last=last)

    @collective
    def _answer(self, nodes: Offsets, target: GlobalIndices, *, last: bool) -> None:
        """Let the owners of clusters decide who joins, and follow their answers."""
        row_map, comm = self._level.row_map, self._comm
        origin = np.full(len(nodes), comm.rank, np.int32)
        arrived = redistribute(
            comm,
            row_map.owner(target),
            target,
            self._level.weights[nodes],
            nodes + row_map.start,
            origin,
        )
        order = np.lexsort((arrived[2], arrived[0]))
        target, weight, node, origin = (column[order] for column in arrived)
        cluster = target - row_map.start
        joins = _fits(cluster, weight, self._max_weight - self._weight, MOST_JOINING - self._joined)
        np.add.at(self._weight, cluster[joins], weight[joins])
        np.add.at(self._joined, cluster[joins], 1)
        self._settled[cluster[joins]] = True
        leader = np.where(joins, target, -1)
        if last:
            left = np.flatnonzero(~joins)
            leader[left] = _among_themselves(
                cluster[left], weight[left], node[left], self._max_weight
            )
        answered = leader >= 0
        node, leader = redistribute(comm, origin[answered], node[answered], leader[answered])
        self.leader[node - row_map.start] = leader
        self._settled[node - row_map.start] = True


def _fits(groups: Array, weight: Offsets, room: Offsets, seats: Offsets) -> Array:
    """Return who of each group, sorted and consecutive, fits into what is left for it."""
    first = np.searchsorted(groups, groups)
    before = np.concatenate([[0], np.cumsum(weight)])
    num_taken = before[1:] - before[first]
    position = np.arange(len(groups)) - first
    fits: Array = (num_taken <= room[groups]) & (position < seats[groups])
    return fits


def _among_themselves(
    groups: Array, weight: Offsets, node: GlobalIndices, max_weight: int
) -> GlobalIndices:
    """Return the first nodes of clusters of nodes of the same group; -1 for a node left alone."""
    position = np.arange(len(groups)) - np.searchsorted(groups, groups)
    begins = position % (MOST_JOINING + 1) == 0
    chunk = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)[chunk]
    before = np.concatenate([[0], np.cumsum(weight)])
    fits = before[1:] - before[first] <= max_weight
    return np.where(fits, node[first], -1)


@collective
def cluster(comm: Communicator, level: Level, max_weight: int, salt: int) -> GlobalIndices:
    """Return the first node, global int64, of the cluster of each own node.

    A cluster of several nodes weighs at most `max_weight`.
    """
    clustering = _Clustering(comm, level, max_weight, salt)
    for number in range(ROUNDS):
        clustering.let_join(number, last=number == ROUNDS - 1)
    return clustering.leader


@collective
def contract(grid: ProcessGrid, level: Level, leader: GlobalIndices) -> tuple[Level, GlobalIndices]:
    """Return the graph of the clusters, and the number of each own node's cluster in it.

    Clusters are numbered by their first nodes, and stay with the ranks of these.
    """
    comm, row_map = grid.layer, level.row_map
    leads = leader == np.arange(row_map.start, row_map.stop)
    num_leaders = np.array([np.count_nonzero(leads)], np.int64)
    before = int(exclusive_sum(comm, num_leaders)[0])
    counts = np.array(comm.allgather(int(num_leaders[0])), np.int64)
    coarse_map = RowMap(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), grid.block)
    number = before + np.cumsum(leads) - 1
    names, inverse = np.unique(leader, return_inverse=True)
    request = RowRequest.make(comm, row_map, names)
    coarse = request.rows(number)[inverse]
    weights = request.add_back(np.bincount(inverse, level.weights, len(names)).astype(np.int64))
    del names, inverse, request, number
    everywhere = level.with_ghosts(coarse)
    # Rows of one cluster follow each other: what they have in common is added up before it is sent.
    by_cluster = np.argsort(coarse)
    slice_of = _slice_of(coarse_map, coarse[by_cluster])
    slices = (
        _coarse_entries(level, by_cluster[slice_of == number], everywhere, coarse_map.num_rows)
        for number in range(_SLICES)
    )
    entries = _added_up(comm, coarse_map, slices)
    del slices, slice_of, by_cluster, everywhere
    return _level(grid, coarse_map, entries, weights[leads]), coarse


def _coarse_entries(
    level: Level, rows: GlobalIndices, everywhere: GlobalIndices, num_rows: int
) -> Iterator[Entries]:
    """Yield the keys, see `_added_up`, and weights of the entries of some local rows."""
    ends = np.concatenate([[0], np.cumsum(np.diff(level.indptr)[rows])])
    for first, stop in row_blocks(ends, step_entries(level.indptr)):
        chunk = rows[first:stop]
        positions = row_positions(level.indptr, chunk)
        row = np.repeat(everywhere[chunk], np.diff(ends[first : stop + 1]))
        column = everywhere[level.columns[positions]]
        apart = row != column
        yield row[apart] * max(num_rows, 1) + column[apart], level.edges[positions[apart]]
