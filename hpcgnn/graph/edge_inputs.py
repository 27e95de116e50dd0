"""What models read of edges: scaled features, and where a source lies as its target sees it."""

from dataclasses import replace

import numpy as np

from hpcgnn.comm import RowRequest, agree, allreduce_sum, rows_of
from hpcgnn.graph.inputs import Scales, Scaling
from hpcgnn.graph.stored import StoredRows
from hpcgnn.sparse import EdgeRows, read_edge_rows
from hpcgnn.spmd import collective
from hpcgnn.storage import Split
from hpcgnn.typing import FloatArray, Mask


@collective
def scaled_edges(stored: StoredRows, relation: str, features: FloatArray) -> FloatArray:
    """Return features (n, F) of edges of a relation as models read them, see `Scaling`.

    Those of float16 stay as they are where nothing scales them. Where no scale is known yet, they
    are those of all edges of this rank, in the store's order.
    Raises `CollectiveInputError` when a value is too large for the training dtype.
    """
    context = stored.context
    how, dtype = context.config.graph.normalize_edge_features, context.config.train.dtype
    if how == "none" and features.dtype == np.float16:
        return features
    scaling = Scaling(context.grid, how, context.scales, dtype)
    return scaling(Scales.of_edges(relation), features, lambda: _measured(stored, relation))


@collective
def _measured(stored: StoredRows, relation: str) -> Mask | None:
    """Return which edges of a relation join nodes that are trained on; None where all count."""
    config, store, row_map = stored.context.config, stored.store, stored.row_map
    if not (config.train.inductive or "graphs" in config.train.tasks):
        return None
    grid = stored.context.grid
    with agree(grid.world):
        split = store.read_split(row_map.start, row_map.stop, config.graph.split)
        block = store.read_adjacency(row_map.start, row_map.stop, relation)
    if split is None:
        return None
    trains = split == Split.TRAIN
    sources: Mask = rows_of(grid.layer, row_map, block.indices.astype(np.int64), trains)
    return sources & np.repeat(trains, np.diff(block.indptr))


@collective
def with_positions(stored: StoredRows, edges: EdgeRows) -> EdgeRows:
    """Return edges with ``(p_j - p_i) / l`` and ``|p_j - p_i| / l`` behind their features.

    p_j is the position of the source, the nearest one where axes are periodic, and l the mean
    length of all edges of the relations that are read. Where the graph has no periods, turning it
    turns the first D columns and leaves the last one.

    Raises `CollectiveInputError` when a block does not read.
    """
    context, hidden = stored.context, stored.context.hidden
    steps = _steps(stored, edges)
    every = steps
    if hidden is not None:
        # What training sees is scaled as what it is judged on.
        given = context.grid, stored.store, stored.row_map, stored.relations
        every = _steps(stored, read_edge_rows(*given, None))
    total = np.array([np.linalg.norm(every, axis=1).sum(), len(every)])
    allreduce_sum(context.grid.layer, total)
    steps /= total[0] / total[1] if total[0] > 0 else 1.0
    lengths = np.linalg.norm(steps, axis=1, keepdims=True)
    columns = [edges.features, steps, lengths]
    return replace(edges, features=np.concatenate(columns, axis=1))


@collective
def _steps(stored: StoredRows, edges: EdgeRows) -> FloatArray:
    """Return (E, D) float64 from targets to sources."""
    store, row_map, grid = stored.store, stored.row_map, stored.context.grid
    with agree(grid.world):
        own = store.read_positions(row_map.start, row_map.stop)
    assert own is not None
    wanted, places = np.unique(edges.sources, return_inverse=True)
    theirs: FloatArray = RowRequest.make(grid.layer, row_map, wanted).rows(own)
    steps = theirs[places] - own[edges.targets]
    box = np.array(store.box)
    periods = np.where(box > 0, box, np.inf)
    # The nearest image of the source; half a period away, either.
    steps -= np.where(box > 0, box, 0.0) * np.rint(steps / periods)
    return steps
