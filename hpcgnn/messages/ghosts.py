"""Rows of the sources of a rank's edges, own rows first, and sums returned to their owners.

Shapes: N local nodes, G rows that other ranks own, E edges.
"""

import numpy as np

from hpcgnn.messages.operator import MessageOperator
from hpcgnn.messages.remote_rows import Fetched
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, FloatArray, GlobalIndices


def source_places(operator: MessageOperator) -> GlobalIndices:
    """Return (E,) int64 the row of each edge's source among the N + G rows of `with_ghosts`."""
    start, places = 0, []
    for part in operator.parts:
        places.append(part.block.indices.astype(np.int64) + start)
        start += part.block.shape[1]
    return np.concatenate(places)


@collective
def with_ghosts(operator: MessageOperator, rows: FloatArray) -> FloatArray:
    """Return (N + G, width) the own `rows` (N, width), then those fetched in each stage."""
    rows = np.ascontiguousarray(rows)
    fetch, parts = operator.sources.start_fetch(rows), [rows]
    for index in range(len(operator.stages)):
        with operator.trace.span("wait.forward"):
            # A sequential exchange overwrites these rows in its next stage.
            parts.append(operator.sources.arrived(fetch, index, rows.dtype).copy())
    return np.concatenate(parts)


@collective
def take_home(operator: MessageOperator, rows: FloatArray) -> FloatArray:
    """Return (N, width) the own rows of `rows` (N + G, width) plus other ranks' ghosts of them."""
    sizes = [operator.shape[1], *(stage.block.shape[1] for stage in operator.stages)]
    own, *stages = np.split(rows, np.cumsum(sizes)[:-1])
    total = np.ascontiguousarray(own).copy()
    # An exchange may push rows in another order than it fetches them: send row numbers through it.
    numbers = [np.arange(len(stage))[:, None] for stage in stages]

    def sums(index: int, order: Array | None) -> FloatArray:
        assert order is not None
        return np.ascontiguousarray(stages[index][order[:, 0]])

    operator.sources.start_return(total, Fetched(numbers), total, sums).finish()
    return total
