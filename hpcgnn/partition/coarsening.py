"""Distributed coarsening: nodes join clusters, which become the nodes of a smaller graph.

Clusters are size-constrained as in label propagation (Meyerhenke, Sanders and Schulz, "Parallel
graph partitioning for complex networks", IEEE TPDS 28, 2017), but limited to few members. In every
round half of the nodes, chosen by a hash, request to join the cluster they are most connected to,
and the rank of the cluster's first node accepts as many as fit. In the last round, nodes that a
full cluster refuses form clusters among themselves, because leaves of one hub belong together.
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
"""Nodes that may join a cluster in one level; faster growth costs much in volume."""

HEAVIEST_EDGE = 2**20
"""Larger edge weights are reduced to this, so that their sums fit METIS's integers."""

_SLICES = 16

Entries: TypeAlias = tuple[Array, Array]
"""Keys and weights of entries; see `_sum_entries`."""


@dataclass(frozen=True, eq=False)
class Level:
    """Rows of a symmetric weighted graph without loops, and the plan that fetches ghosts' data.

    `row_map` gives the owners of nodes; local columns are own nodes, then the ghosts of `plan`.
    `indptr` (num_local + 1,) is int64, `columns` (entries,) int32 local, `edges` (entries,) int32
    weights, 0 for loops, and `weights` (num_local,) the int64 weights of the nodes.
    """

    row_map: RowMap
    plan: CommPlan
    indptr: Offsets
    columns: LocalIndices
    edges: LocalIndices
    weights: Offsets

    @collective
    def with_ghosts(self, values: Array) -> Array:
        """Return `values` (num_local,) followed by those of the ghosts."""
        ghosts = np.empty((self.plan.num_ghosts, 1), values.dtype)
        self.plan.start_forward(values[self.plan.send_rows][:, None], ghosts).wait()
        return np.concatenate([values, ghosts[:, 0]])

    def degrees(self) -> FloatArray:
        """Return the sum of the edge weights at each own node, float64."""
        sums = np.zeros(self.row_map.num_local)
        for first, stop in row_blocks(self.indptr, step_entries(self.indptr)):
            bounds = self.indptr[first : stop + 1]
            rows = np.repeat(np.arange(stop - first), np.diff(bounds))
            sums[first:stop] = np.bincount(rows, self.edges[bounds[0] : bounds[-1]], stop - first)
        return sums

    @collective
    def shares(self) -> Array:
        """Return the reciprocals of the degrees, float64, followed by those of the ghosts."""
        with np.errstate(divide="ignore"):
            return self.with_ghosts(1 / self.degrees())


@collective
def finest_level(
    grid: ProcessGrid, rows: BlockRow, weights: Offsets, density: float, seed: int
) -> Level:
    """Return a sample of the pattern of rows, united with its transpose if it is not symmetric.

    An edge is kept with probability min(1, density / degree + density / degree), with the degrees
    of both ends, and is weighted by the reciprocal, so that the mean of every cut is preserved. An
    infinite `density` keeps all edges.
    """
    row_map = rows.row_map
    row, column, edges = _sampled_rows(grid.layer, rows, density, seed)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=row_map.num_local))])
    del row
    if rows.symmetric:
        return _level(grid, row_map, (indptr, column, edges), weights)
    sample = BlockRow(row_map, indptr, column, symmetric=False)
    slices = (_both_ways(sample, edges, number) for number in range(_SLICES))
    return _level(grid, row_map, _sum_entries(grid.layer, row_map, slices), weights)


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


def _both_ways(rows: BlockRow, edges: LocalIndices, number: int) -> Iterator[Entries]:
    """Yield the non-zeros and their reverses whose rows are in slice `number`, with weights."""
    row_map, first = rows.row_map, 0
    for row, column in rows.entries(step_entries(rows.indptr)):
        weights = edges[first : first + len(row)]
        for source, target in ((row, column), (column, row)):
            selected = _slice_of(row_map, source) == number
            keys = source[selected] * max(row_map.num_rows, 1) + target[selected]
            yield keys, weights[selected]
        first += len(row)


def step_entries(indptr: Offsets) -> int:
    """Return how many entries to process at a time: thousands, but a small part of a rank's."""
    return int(np.clip(indptr[-1] >> 5, 1 << 14, 1 << 18))


def _slice_of(row_map: RowMap, rows: GlobalIndices) -> Array:
    """Return the slice of each row, where an owner's rows are divided into `_SLICES` equal ones."""
    owners = row_map.owner(rows)
    sizes = np.maximum(np.diff(row_map.starts), 1)
    return ((rows - row_map.starts[owners]) * _SLICES // sizes[owners]).astype(np.int8)


@collective
def _sum_entries(
    comm: Communicator, row_map: RowMap, slices: Iterable[Iterator[Entries]]
) -> tuple[Offsets, Array, LocalIndices]:
    """Return CSR arrays with global columns of the entries of all ranks, with equal ones summed.

    The key of an entry is its global row times the number of all rows, plus its column. Slices of
    the ranks' rows are gathered one after another, each in steps, because sorting takes several
    times the memory of its input.
    """
    num_rows = max(row_map.num_rows, 1)
    kind = np.int32 if num_rows <= np.iinfo(np.int32).max else np.int64
    kept_columns, kept_edges = [np.empty(0, kind)], [np.empty(0, np.int32)]
    counts = np.zeros(row_map.num_local, np.int64)
    none: Entries = np.empty(0, np.int64), np.empty(0, np.int32)
    for steps in slices:
        arrived: list[tuple[Array, ...]] = [none]
        # All ranks send equally often; some send nothing in the last steps.
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
    """Return the distinct keys, ascending, and the sum of the edge weights of each."""
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
    """Return the level of CSR arrays with global columns; loops get weight 0."""
    indptr, columns, edges = entries
    names = distinct(columns, row_map.num_rows).astype(np.int64)
    local = row_map.is_local(names)
    ghosts = names[~local]
    ghost_numbers = row_map.num_local + np.cumsum(~local) - 1
    local_numbers = np.where(local, names - row_map.start, ghost_numbers).astype(np.int32)
    # Overwrite the global columns if they are int32 too.
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
    """Return 64 pseudorandom bits for each number, the same on every rank (SplitMix64)."""
    step = np.uint64(salt * GOLDEN % 2**64)
    return split_mix((values.astype(np.uint64) + step) * np.uint64(GOLDEN))


class _Clustering:
    """The clusters while nodes join; a cluster is identified by its first node, its leader."""

    def __init__(self, comm: Communicator, level: Level, max_weight: int, salt: int) -> None:
        self._comm, self._level, self._max_weight, self._salt = comm, level, max_weight, salt
        row_map = level.row_map
        self.leader = np.arange(row_map.start, row_map.stop)
        self._settled = np.zeros(row_map.num_local, bool)
        # Weights and numbers of joined nodes of the clusters that own nodes lead.
        self._weight = level.weights.copy()
        self._joined = np.zeros(row_map.num_local, np.int64)
        self._share = level.shares()

    @collective
    def let_join(self, number: int, *, last: bool) -> None:
        """Do a round, in which half of the nodes ask to join a cluster."""
        level, row_map = self._level, self._level.row_map
        asks = (mixed(self.leader, self._salt + number) & np.uint64(1)).astype(bool)
        asks &= ~self._settled & (level.weights <= self._max_weight)
        # A node that asks cannot accept others. Full clusters are asked in the last round only.
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
        """Let the owners of clusters decide which nodes join, and apply their answers."""
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
    """Return a mask of the members that fit into the room and the seats left in their group.

    Members of a group are consecutive, and are accepted in order.
    """
    first = np.searchsorted(groups, groups)
    before = np.concatenate([[0], np.cumsum(weight)])
    num_taken = before[1:] - before[first]
    position = np.arange(len(groups)) - first
    return (num_taken <= room[groups]) & (position < seats[groups])


def _among_themselves(
    groups: Array, weight: Offsets, node: GlobalIndices, max_weight: int
) -> GlobalIndices:
    """Form clusters within groups; return each node's first node, -1 for nodes left alone."""
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

    Clusters are numbered in the order of their first nodes and stay on the ranks of these.
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
    # Make rows of one cluster consecutive, so that common entries are summed before sending.
    by_cluster = np.argsort(coarse)
    slice_of = _slice_of(coarse_map, coarse[by_cluster])
    slices = (
        _coarse_entries(level, by_cluster[slice_of == number], everywhere, coarse_map.num_rows)
        for number in range(_SLICES)
    )
    entries = _sum_entries(comm, coarse_map, slices)
    del slices, slice_of, by_cluster, everywhere
    return _level(grid, coarse_map, entries, weights[leads]), coarse


def _coarse_entries(
    level: Level, rows: GlobalIndices, everywhere: GlobalIndices, num_rows: int
) -> Iterator[Entries]:
    """Yield the keys, see `_sum_entries`, and weights of the entries of some local rows."""
    ends = np.concatenate([[0], np.cumsum(np.diff(level.indptr)[rows])])
    for first, stop in row_blocks(ends, step_entries(level.indptr)):
        chunk = rows[first:stop]
        positions = row_positions(level.indptr, chunk)
        row = np.repeat(everywhere[chunk], np.diff(ends[first : stop + 1]))
        column = everywhere[level.columns[positions]]
        apart = row != column
        yield row[apart] * max(num_rows, 1) + column[apart], level.edges[positions[apart]]
