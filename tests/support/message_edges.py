"""A small graph for messages of edges: a hub, double edges, nodes and ranks without edges."""

import numpy as np

from hpcgnn.autograd import EdgeInputs
from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.messages import EdgeTable, MessageOperator
from hpcgnn.sparse import DistCSR, EdgeRows, PatternRows
from hpcgnn.spmm import METHODS, RESIDENT, Schedule, make_exchange
from hpcgnn.support import Trait
from hpcgnn.trace import TraceRecorder

FETCHING = tuple(name for name, each in METHODS.items() if Trait.PUSHES not in each.needs)
"""Exchanges that push nothing."""

NUM_NODES = 19
HUB, ALONE, LAST_TARGET = 5, 7, 13


def make_edges() -> np.ndarray:
    """Return (2, E) sources and targets, targets rising; a hub, double edges, nodes without."""
    rng = np.random.default_rng(3)
    ends = rng.integers(0, NUM_NODES, (2, 60))
    hub = np.stack([rng.integers(0, NUM_NODES, 80), np.full(80, HUB)])
    ends = np.concatenate([ends, hub, hub[:, :3]], axis=1)
    ends = ends[:, (ends[1] < LAST_TARGET) & (ends[1] != ALONE)]
    return ends[:, np.argsort(ends[1], kind="stable")]


def block_rows(grid: ProcessGrid, num_nodes: int = NUM_NODES) -> RowMap:
    """Return equal block rows; the last of several has no targets, the second of many no rows."""
    blocks, last = grid.num_blocks, min(LAST_TARGET, num_nodes)
    empty = int(blocks > 3)
    starts = np.linspace(0, last if blocks > 1 else num_nodes, max(blocks - 1 - empty, 1) + 1)
    starts = np.insert(starts, 1, [starts[1]] * empty)
    starts = np.concatenate([starts, [num_nodes]] if blocks > 1 else [starts])
    return RowMap(starts.astype(np.int64), grid.block)


def local_inputs(
    grid: ProcessGrid,
    ends: np.ndarray,
    features: np.ndarray | None = None,
    *,
    num_nodes: int = NUM_NODES,
    exchange: str = "aware",
    wire: str = "native",
    schedule: Schedule = RESIDENT,
) -> tuple[EdgeInputs, slice, np.ndarray]:
    """Return the edges of this rank, its rows, and the numbers of its edges; the last has none.

    `features` are (E, F), of all edges in any order.
    """
    grid, trace = grid.unreplicated(), TraceRecorder.off()
    row_map = block_rows(grid, num_nodes)
    rows = slice(row_map.start, row_map.stop)
    # The number of the edge follows the features.
    number = np.arange(ends.shape[1])[:, None]
    table = number if features is None else np.concatenate([features, number], axis=1)
    chosen = (ends[1] >= rows.start) & (ends[1] < rows.stop)
    sources, targets = ends[:, chosen]
    edges = EdgeRows(targets - rows.start, sources, table[chosen])
    entries = np.unique(edges.targets * num_nodes + sources)
    counts = np.bincount(entries // num_nodes, minlength=row_map.num_local)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    pattern = PatternRows(indptr, entries % num_nodes, None)
    found = EdgeTable.of_pattern(row_map, pattern, edges)
    matrix = DistCSR.from_rows(row_map, pattern.indptr, pattern.columns, found.numbers)
    made = make_exchange(exchange, grid, matrix, trace, wire, schedule)
    whole = MessageOperator(matrix, made, found)
    places = whole.features[:, -1].astype(np.int64)
    bare = EdgeTable(found.features[:, :-1].copy(), found.starts)
    return EdgeInputs(MessageOperator(matrix, made, bare)), rows, places
