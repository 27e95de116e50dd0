"""Rows of all edges, in order."""

import numpy as np

from hpcgnn.comm import ProcessGrid
from hpcgnn.comm.collect_rows import in_order
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, GlobalIndices


@collective
def in_order_of_ends(grid: ProcessGrid, ids: GlobalIndices, *rows: Array) -> tuple[Array, ...]:
    """Sort ids and rows of edges over the ranks of a layer by source, target, relation.

    `ids` (E, 2) or (E, 3) int64 are these.
    """
    ids, *rest = in_order(grid.layer, ids[:, 0], ids, *rows)
    # All edges of a source are on one rank.
    order = np.lexsort(ids.T[::-1])
    return ids[order], *(array[order] for array in rest)
