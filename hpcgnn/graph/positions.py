"""Features of edges from the positions of nodes: where a source lies as its target sees it."""

from dataclasses import replace

import numpy as np

from hpcgnn.comm import RowRequest, agree, allreduce_sum
from hpcgnn.graph.stored import StoredRows
from hpcgnn.sparse import EdgeRows, read_edge_rows
from hpcgnn.spmd import collective
from hpcgnn.typing import FloatArray


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
