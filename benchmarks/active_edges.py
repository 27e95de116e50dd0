"""The share of edges that a backward pass on active sets needs, counted without MPI.

An oracle for `hpcgnn.sparse.active_sets`: active sets of the whole graph, by SciPy.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpcgnn.partition import read_pattern
from hpcgnn.storage import GraphStore, Split

__all__ = ["active_edge_share"]


def active_edge_share(
    path: Path, relations: Sequence[str], widths: Sequence[float], *, undirected: bool
) -> float:
    """Return active edges over all edges, summed over the layers of the backward pass.

    Parameters
    ----------
    path, relations, undirected
        The store and the adjacency; with directed edges a layer aggregates both ways, as GraphSAGE
        does.
    widths
        Columns that the backward pass of each layer aggregates, the last layer first: the weight of
        the layer's edges. The first layer needs no gradient of features and is left out.
    """
    with GraphStore.open(path) as store:
        matrix = read_pattern(store, relations, undirected).to_scipy().astype(np.int8)
        split = store.read_split(0, store.num_nodes)
        directed = not (undirected or store.undirected)
    assert split is not None
    directions = [matrix, matrix.T.tocsr()] if directed else [matrix]
    rows, active = split == Split.TRAIN, 0.0
    for width in widths:
        columns = rows.copy()
        for pattern in directions:
            columns |= pattern.T.astype(np.int32) @ rows.astype(np.int32) > 0
        for pattern in directions:
            active += width * int(pattern[rows][:, columns].nnz)
        rows = columns
    return active / (sum(widths) * len(directions) * matrix.nnz)
