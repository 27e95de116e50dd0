"""What models read of edges: features of a relation, scaled as configured."""

import numpy as np

from hpcgnn.comm import agree, rows_of
from hpcgnn.graph.inputs import Scales, Scaling
from hpcgnn.graph.stored import StoredRows
from hpcgnn.spmd import collective
from hpcgnn.storage import Split
from hpcgnn.typing import FloatArray, Mask


@collective
def scaled_edges(stored: StoredRows, relation: str, features: FloatArray) -> FloatArray:
    """Return features (n, F) of edges of a relation as models read them, see `Scaling`.

    Those of float16 stay as they are where nothing scales them.

    Where no scale is known yet, they are those of all edges of this rank, in the store's order.
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
