"""Keep the relations of a graph separate in one matrix with a block of rows for each.

Row ``r n + i`` of a rank with n nodes has the neighbours of its node i in relation r. A product
with this tall matrix computes the aggregates of all relations, but fetches a ghost only once; a
minimum cover of the tall matrix still gives the fewest rows that must move.
"""

from collections.abc import Sequence

import numpy as np

from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.sparse.assemble import PatternRows, read_adjacency, reverse_rows, unite
from hpcgnn.sparse.edge_rows import EdgeRows, EdgeTable
from hpcgnn.sparse.hide_edges import local_rows
from hpcgnn.sparse.matrix import DistCSR
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore
from hpcgnn.typing import FloatArray


@collective
def read_relations(
    grid: ProcessGrid,
    store: GraphStore,
    row_map: RowMap,
    relations: Sequence[str],
    *,
    undirected: bool,
    reverse: bool,
) -> list[PatternRows]:
    """Read this rank's rows of every relation, then of their reverses, as `read_adjacency` does.

    `undirected` adds the reverse of every edge to the same relation, `reverse` adds the reverse of
    every relation as a new relation.
    """
    rows = [
        read_adjacency(grid, store, row_map, [name], undirected=undirected) for name in relations
    ]
    return rows + [reverse_rows(grid, row_map, relation) for relation in rows if reverse]


def stack_relations(row_map: RowMap, relations: Sequence[PatternRows]) -> DistCSR:
    """Return the matrix with a block of rows for each of at least one relation.

    If some relations have weights, edges of the others get weight one.
    """
    ends = np.cumsum([0, *(len(relation.columns) for relation in relations)])
    offsets = [
        relation.indptr[1:] + end for relation, end in zip(relations, ends[:-1], strict=True)
    ]
    return DistCSR.from_rows(
        row_map,
        np.concatenate([np.zeros(1, np.int64), *offsets]),
        np.concatenate([relation.columns for relation in relations]),
        _weights(relations),
        num_relations=len(relations),
    )


def unite_relations(
    row_map: RowMap, relations: Sequence[PatternRows]
) -> tuple[PatternRows, EdgeTable]:
    """Return the union of relations, and its edges with two features: relation and weight."""
    union = relations[0] if len(relations) == 1 else unite(row_map, relations)
    rows = np.concatenate([local_rows(part) for part in relations])
    columns = np.concatenate([part.columns for part in relations]).astype(np.int64)
    table = np.ones((len(rows), 2), np.float32)
    table[:, 0] = np.repeat(range(len(relations)), [len(part.columns) for part in relations])
    weights = _weights(relations)
    if weights is not None:
        table[:, 1] = weights
    return union, EdgeTable.of_pattern(row_map, union, EdgeRows(rows, columns, table))


def _weights(relations: Sequence[PatternRows]) -> FloatArray | None:
    """Return the weights of the edges, relation after relation; None if all are 1."""
    if all(part.weights is None for part in relations):
        return None
    return np.concatenate(
        [
            np.ones(len(part.columns), np.float32) if part.weights is None else part.weights
            for part in relations
        ]
    )
