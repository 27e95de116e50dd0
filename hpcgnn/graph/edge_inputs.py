"""Make the models' edge inputs: scaled features, and positions of sources relative to targets."""

from dataclasses import replace

import numpy as np
import torch

from hpcgnn.autograd import arithmetic
from hpcgnn.comm import RowRequest, agree, rows_of
from hpcgnn.graph.inputs import Scales, Scaling
from hpcgnn.graph.stored_rows import StoredRows
from hpcgnn.sparse import EdgeRows, read_edge_rows
from hpcgnn.spmd import collective
from hpcgnn.storage import Split
from hpcgnn.typing import FloatArray, Mask


@collective
def scaled_edges(stored: StoredRows, relation: str, features: FloatArray) -> FloatArray:
    """Return features (n, F) of edges of a relation as models read them, see `Scaling`.

    Features in float16 stay so if they are not scaled. If no scale is known yet, `features` must be
    those of all edges of this rank, in the store's order.
    Raises `CollectiveInputError` if a value is too large for the training dtype.
    """
    context = stored.context
    how, dtype = context.config.graph.normalize_edge_features, context.config.train.dtype
    if how == "none" and features.dtype == np.float16:
        return features
    scaling = Scaling(context.grid, how, context.scales, dtype)
    return scaling(Scales.of_edges(relation), features, lambda: _training_edges(stored, relation))


@collective
def _training_edges(stored: StoredRows, relation: str) -> Mask | None:
    """Return a mask of a relation's edges between training nodes; None if all edges count."""
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
    """Return edges with ``(p_j - p_i) / l`` and ``|p_j - p_i| / l`` appended to their features.

    p_j is the position of the source, its nearest image on periodic axes, and l the mean length of
    all edges of the relations in use, in the graph that the model was trained on. Without periods,
    a rotation of the graph rotates the first D of these columns and leaves the last one unchanged.

    Raises `CollectiveInputError` if a block cannot be read.
    """
    steps, scales = _steps(stored, edges), stored.context.scales
    if scales.length is None:
        scales.length = _mean_length(stored, steps)
    steps /= scales.length
    lengths = np.linalg.norm(steps, axis=1, keepdims=True)
    columns = [edges.features, steps, lengths]
    return replace(edges, features=np.concatenate(columns, axis=1))


@collective
def _mean_length(stored: StoredRows, steps: FloatArray) -> float:
    """Return the mean length of all edges, of which this rank reads `steps`; 1 if it is 0."""
    context, hidden = stored.context, stored.context.hidden
    if hidden is not None:
        # Scale by all edges, hidden ones included, so that training and evaluation agree.
        source = context.grid, stored.store, stored.row_map, stored.relations
        steps = _steps(stored, read_edge_rows(*source, None))
    lengths = torch.from_numpy(np.linalg.norm(steps, axis=1, keepdims=True))
    total, count = arithmetic().sums_and_count(lengths, context.grid.sum_over_blocks)
    return float(total / count) if total > 0 else 1.0


@collective
def _steps(stored: StoredRows, edges: EdgeRows) -> FloatArray:
    """Return the vectors (E, D) float64 from targets to sources."""
    store, row_map, grid = stored.store, stored.row_map, stored.context.grid
    with agree(grid.world):
        own = store.read_positions(row_map.start, row_map.stop)
    assert own is not None
    sources, inverse = np.unique(edges.sources, return_inverse=True)
    positions: FloatArray = RowRequest.make(grid.layer, row_map, sources).rows(own)
    steps = positions[inverse] - own[edges.targets]
    box = np.array(store.box)
    periods = np.where(box > 0, box, np.inf)
    # The nearest image of the source; at half a period either of two.
    steps -= np.where(box > 0, box, 0.0) * np.rint(steps / periods)
    return steps
