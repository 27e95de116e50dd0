"""The edges of a rank's rows with their features, those of several relations side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import ProcessGrid, RowMap, agree
from hpcgnn.sparse.assemble import PatternRows
from hpcgnn.sparse.hidden import EdgesOutside, HiddenEdges, local_rows
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore
from hpcgnn.typing import FloatArray, GlobalIndices


@dataclass(frozen=True, eq=False)
class EdgeRows:
    """Edges of a rank, which owns their targets; two relations may have the same edge.

    Parameters
    ----------
    targets
        (E,) int64 local rows.
    sources
        (E,) int64 global rows.
    features
        (E, F) as the store has them.
    """

    targets: GlobalIndices
    sources: GlobalIndices
    features: FloatArray


@collective
def read_edge_rows(
    grid: ProcessGrid,
    store: GraphStore,
    row_map: RowMap,
    relations: Sequence[str],
    hidden: HiddenEdges | EdgesOutside | None,
) -> EdgeRows:
    """Read the edges of this rank's rows.

    Parameters
    ----------
    grid, store, row_map
        The ranks, the open store, and the rows of this rank.
    relations
        Names; their edges have equally many features, at least one.
    hidden
        Edges to leave out.

    Raises
    ------
    CollectiveInputError
        When a block does not read.
    """
    found = []
    for name in relations:
        with agree(grid.world):
            block = store.read_adjacency(row_map.start, row_map.stop, name)
            features = store.read_edge_data(row_map.start, row_map.stop, name).features
        assert features is not None
        pattern = PatternRows(block.indptr, block.indices, None)
        kept = np.ones(len(features), np.bool_) if hidden is None else hidden.keeps(pattern)
        found.append((local_rows(pattern)[kept], block.indices[kept], features[kept]))
    targets, sources, parts = zip(*found, strict=True)
    return EdgeRows(
        np.concatenate(targets), np.concatenate(sources).astype(np.int64), np.concatenate(parts)
    )
