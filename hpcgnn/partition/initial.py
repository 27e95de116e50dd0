"""The initial partition: METIS on a small graph of clusters, on several ranks with other seeds."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.comm import Communicator, ProcessGrid, exclusive_sum, rows_of
from hpcgnn.partition import _volpart
from hpcgnn.partition.coarsening import (
    HEAVIEST_EDGE,
    Level,
    cluster,
    contract,
    finest_level,
)
from hpcgnn.partition.metis import weighted_metis
from hpcgnn.partition.pattern import BlockRow
from hpcgnn.partition.volume_balanced import METIS_SEEDS, SMALLEST_METIS_IMBALANCE
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Offsets

CLUSTERS_PER_PART = 50
EDGES_PER_PART = 1 << 7
SKETCH_SHARE = 8
SMALLEST_SKETCHES = (1 << 16, 1 << 18)
MOST_EDGES_PER_PART = 1 << 15
"""A sketch of a small graph has half a rank's edges, within `SMALLEST_SKETCHES`, and so takes no
more memory than refinement; of a large one a `SKETCH_SHARE`-th, up to this for each part."""
EDGES_PER_CLUSTER = 8
DENSITY = 8.0
"""Mean number of edges that a node keeps for clustering, beside those its neighbours keep."""
MOST_STARTS = 4
"""Most ranks that run METIS; the best of more runs is hardly better."""

_MOST_LEVELS = 30
_LEAST_SHRINK = 1.1


@collective
def first_parts(
    grid: ProcessGrid, rows: BlockRow, weights: Offsets, num_parts: int, seed: int, imbalance: float
) -> LocalIndices:
    """Return the part, int32, of each of this rank's nodes: about balanced, with a small cut.

    Nodes without an edge are distributed evenly.
    """
    comm = grid.layer
    entries, total = _sums(comm, len(rows.columns), int(weights.sum()))
    share = entries // comm.size
    smallest, largest = SMALLEST_SKETCHES
    most = max(
        min(share // SKETCH_SHARE, MOST_EDGES_PER_PART * num_parts),
        EDGES_PER_PART * num_parts,
        min(max(share // 2, smallest), largest),
    )
    level = finest_level(grid, rows, weights, DENSITY, seed)
    number: GlobalIndices = np.arange(rows.row_map.start, rows.row_map.stop)
    max_weight = total // (CLUSTERS_PER_PART * num_parts) + 1
    enough = max(most // EDGES_PER_CLUSTER, CLUSTERS_PER_PART * num_parts)
    for salt in range(_MOST_LEVELS):
        left, edges = _sums(comm, np.count_nonzero(level.weights), len(level.columns))
        if left <= enough or (salt > 0 and edges <= most):
            break
        leader = cluster(comm, level, max_weight, seed + 1009 * salt)
        finer, (level, coarse) = level.row_map, contract(grid, level, leader)
        number = rows_of(comm, finer, number, coarse)
        if _sums(comm, np.count_nonzero(level.weights))[0] * _LEAST_SHRINK > left:
            break
    coarsest, sketch = level.row_map, _sketch(grid, level, most, seed)
    # Free the memory for METIS.
    del level
    part = _cut(comm, sketch, coarsest.num_local, (num_parts, seed, imbalance))
    labels = rows_of(comm, coarsest, number, part)
    # Nodes without an edge.
    unplaced = np.flatnonzero(weights == 0)
    before = int(exclusive_sum(comm, np.array([len(unplaced)], np.int64))[0])
    labels[unplaced] = (before + np.arange(len(unplaced))) % num_parts
    return labels


@collective
def _sums(comm: Communicator, *numbers: int | np.signedinteger[Any]) -> list[int]:
    return [int(comm.allreduce(int(number))) for number in numbers]


@dataclass(frozen=True, eq=False)
class Sketch:
    """A sample of the edges of a level, and the position of a rank's nodes in it.

    Its `num_nodes` nodes are those of the level with a positive weight, in order; `own` (n,) int64
    are local nodes of the level among them, numbered from `first` on. `graph` are offsets, columns
    and weights of edges, and weights of nodes; None on ranks that do not run METIS.
    """

    num_nodes: int
    own: GlobalIndices
    first: int
    graph: tuple[Offsets, LocalIndices, LocalIndices, Offsets] | None


@collective
def _sketch(grid: ProcessGrid, level: Level, most: int, seed: int) -> Sketch:
    comm = grid.layer
    # Nodes without weight have no edges, so METIS need not place them.
    weighted = np.flatnonzero(level.weights > 0)
    first = int(exclusive_sum(comm, np.array([len(weighted)], np.int64))[0])
    number = np.full(level.row_map.num_local, -1, np.int32)
    number[weighted] = np.arange(first, first + len(weighted), dtype=np.int32)
    everywhere = level.with_ghosts(number)
    rows, columns, edges = _sample(grid, level, most, seed)
    counts = np.bincount(rows, minlength=len(number))[weighted]
    arrays = (counts, everywhere[columns], edges, level.weights[weighted])
    del rows, columns, edges, everywhere
    graph = None
    for root in range(min(comm.size, MOST_STARTS)):
        # Only the root gets lists with the arrays of all ranks.
        gathered = [comm.gather(array, root=root) for array in arrays]
        if comm.rank == root:
            counts, columns, edges, weights = (np.concatenate(pieces or []) for pieces in gathered)
            graph = np.concatenate([[0], np.cumsum(counts)]), columns, edges, weights
        del gathered
    (num_nodes,) = _sums(comm, len(weighted))
    return Sketch(num_nodes, weighted, first, graph)


@collective
def _cut(
    comm: Communicator, sketch: Sketch, num_local: int, terms: tuple[int, int, float]
) -> LocalIndices:
    """Return the parts of own nodes; `terms` are number of parts, seed and imbalance."""
    num_parts, seed, imbalance = terms
    cheapest: tuple[float, LocalIndices] = (np.inf, np.empty(0, np.int32))
    if num_parts == 1 or sketch.num_nodes <= num_parts:
        cheapest = (0.0, (np.arange(sketch.num_nodes) % num_parts).astype(np.int32))
    elif sketch.graph is not None:
        cheapest = _best_of(sketch.graph, num_parts, (seed + comm.rank) % METIS_SEEDS, imbalance)
    prices = comm.allgather(cheapest[0])
    best = comm.bcast(cheapest[1], root=int(np.argmin(prices)))
    part = np.zeros(num_local, np.int32)
    part[sketch.own] = best[sketch.first : sketch.first + len(sketch.own)]
    return part


def _best_of(
    graph: tuple[Offsets, LocalIndices, LocalIndices, Offsets],
    num_parts: int,
    seed: int,
    imbalance: float,
) -> tuple[float, LocalIndices]:
    """Return METIS's parts with their price: cut edges of the busiest part plus half the average.

    Refinement compares the same price.
    """
    indptr, columns, edges, _ = graph
    part: LocalIndices = weighted_metis(
        graph, num_parts, seed, max(imbalance, SMALLEST_METIS_IMBALANCE)
    )
    rows = np.repeat(part, np.diff(indptr))
    cut = np.where(rows != part[columns], edges, 0)
    loads = np.bincount(rows, cut, minlength=num_parts)
    return float(loads.max() + loads.mean() / 2), part


@collective
def _sample(grid: ProcessGrid, level: Level, most: int, seed: int) -> tuple[Array, Array, Array]:
    """Return rows, columns (local) and weights of about `most` edges, over all ranks.

    An edge is kept with a probability proportional to its weight times the sum of the reciprocal
    degrees of its ends, and its weight is divided by that. So the mean of every cut is preserved
    and nodes with few edges keep them. Both directions of an edge are kept or dropped together.
    """
    row_map = level.row_map
    stored, nodes = _sums(
        grid.layer, np.count_nonzero(level.edges), np.count_nonzero(level.weights)
    )
    density = most / (2 * nodes) if stored > most else np.inf
    names = level.with_ghosts(np.arange(row_map.start, row_map.stop))
    share = level.shares()
    terms = (row_map.start, density, HEAVIEST_EDGE, seed)
    return _volpart.sample_edges(
        level.indptr, level.columns, level.edges, names, share[: row_map.num_local], share, terms
    )
