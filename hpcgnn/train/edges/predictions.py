"""What a trained model says of all edges, in order."""

import numpy as np

from hpcgnn.comm import ProcessGrid
from hpcgnn.comm.collect_rows import in_order
from hpcgnn.spmd import collective
from hpcgnn.train.full.predictions import NodeRows


@collective
def in_order_of_ends(grid: ProcessGrid, rows: NodeRows) -> NodeRows:
    """Return rows of edges sorted over the ranks of a layer by source, target and relation."""
    ids, *rest = in_order(grid.layer, rows.ids[:, 0], *rows.columns)
    # All edges of a source are on one rank.
    order = np.lexsort(ids.T[[2, 1, 0]])
    return NodeRows(ids[order], *(each[order] for each in rest))
