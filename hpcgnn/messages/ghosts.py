"""Rows of the sources of a rank's edges, own ones first, and sums at them taken home.

Shape suffixes: N local nodes, G rows that other ranks own, E edges.
"""

import numpy as np

from hpcgnn.messages.operator import MessageOperator
from hpcgnn.messages.remote_rows import Fetched
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, FloatArray, GlobalIndices


def source_places(operator: MessageOperator) -> GlobalIndices:
    """Return (E,) int64 where each edge's source is among the N + G rows of `with_ghosts`."""
    start, places = 0, []
    for part in operator.parts:
        places.append(part.block.indices.astype(np.int64) + start)
        start += part.block.shape[1]
    return np.concatenate(places)


@collective
def with_ghosts(operator: MessageOperator, rows: FloatArray) -> FloatArray:
    """Return (N + G, width) the own rows (N, width) and those of each stage."""
    rows = np.ascontiguousarray(rows)
    fetch, parts = operator.sources.start_fetch(rows), [rows]
    for index in range(len(operator.stages)):
        with operator.trace.span("wait.forward"):
            # Rows of a sequential exchange are valid until the next stage.
            parts.append(operator.sources.arrived(fetch, index, rows.dtype).copy())
    return np.concatenate(parts)


@collective
def take_home(operator: MessageOperator, rows: FloatArray) -> FloatArray:
    """Return (N, width) the own rows (N + G, width) and what other ranks have for them, added."""
    sizes = [operator.shape[1], *(stage.block.shape[1] for stage in operator.stages)]
    own, *stages = np.split(rows, np.cumsum(sizes)[:-1])
    total = np.ascontiguousarray(own).copy()
    # An exchange may push in another order than it fetched in: these places tell it.
    places = [np.arange(len(stage))[:, None] for stage in stages]

    def sums(index: int, order: Array | None) -> FloatArray:
        assert order is not None
        return np.ascontiguousarray(stages[index][order[:, 0]])

    operator.sources.start_return(total, Fetched(places), total, sums).finish()
    return total
