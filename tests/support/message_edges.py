"""A small graph of edges for messages: a hub, double edges, nodes and ranks without any."""

import numpy as np
import torch

from hpcgnn.autograd import EdgeInputs
from hpcgnn.comm import ProcessGrid, RowMap, RowRequest
from hpcgnn.trace import TraceRecorder

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


def local_inputs(grid: ProcessGrid, ends: np.ndarray) -> tuple[EdgeInputs, slice, np.ndarray]:
    """Return the edges of this rank, its rows, and which edges they are; the last has none."""
    size, rank = grid.size, grid.rank
    starts = np.linspace(0, LAST_TARGET if size > 1 else NUM_NODES, max(size - 1, 1) + 1)
    starts = np.concatenate([starts, [NUM_NODES]] if size > 1 else [starts]).astype(np.int64)
    row_map = RowMap(starts, rank)
    rows = slice(int(starts[rank]), int(starts[rank + 1]))
    chosen = np.flatnonzero((ends[1] >= rows.start) & (ends[1] < rows.stop))
    wanted, places = np.unique(ends[0, chosen], return_inverse=True)
    request = RowRequest.make(grid.layer, row_map, wanted)
    edges = EdgeInputs(
        request,
        torch.from_numpy(places),
        torch.from_numpy(ends[1, chosen] - rows.start),
        torch.zeros(len(chosen), 0),
        row_map.num_local,
        TraceRecorder.off(),
    )
    return edges, rows, chosen
