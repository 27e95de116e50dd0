"""What exchanges record: rows and bytes by receiving rank, and the ghosts in memory."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import Message, ProcessGrid
from hpcgnn.spmm.carrier import Pool
from hpcgnn.trace import Span, TraceRecorder
from hpcgnn.typing import Array, LocalIndices

__all__ = ["Moved", "exchange_span", "world_ranks"]


def world_ranks(grid: ProcessGrid) -> LocalIndices:
    """Return the rank in the whole grid of each rank of this layer, (layer ranks,) int32.

    Not collective.
    """
    ranks = np.arange(grid.num_blocks, dtype=np.int32)
    return ranks * np.int32(grid.replication) + np.int32(grid.replica)


@dataclass(frozen=True)
class Moved:
    """Rows that one message, or a set of messages, takes to other ranks.

    Parameters
    ----------
    rows_to
        Rank in the whole grid and rows, for each rank that gets any.
    """

    rows_to: tuple[tuple[int, int], ...]

    @classmethod
    def of_counts(cls, rows: Array, ranks: LocalIndices) -> "Moved":
        """Return what goes to each rank of the layer, (ranks of the layer,) rows of an exchange."""
        return cls(tuple((int(ranks[i]), int(rows[i])) for i in rows.nonzero()[0]))

    @classmethod
    def of_messages(cls, messages: tuple[Message, ...], ranks: LocalIndices) -> "Moved":
        """Return what the messages of a stage take; `ranks` as in `world_ranks`."""
        return cls(tuple((int(ranks[each.peer]), each.num_rows) for each in messages))


def exchange_span(trace: TraceRecorder, name: str, moved: Moved, buffer: Array, pool: Pool) -> Span:
    """Return the span of an exchange.

    Not collective.

    Parameters
    ----------
    trace
        The recorder of this rank.
    name
        Name of the span.
    moved
        What this rank sends.
    buffer
        An array of the width and dtype that travel.
    pool
        Counts the ghosts that are in memory.
    """
    if not trace.enabled:
        return trace.span(name)
    row_bytes = buffer.shape[1] * buffer.itemsize
    peers = [(rank, rows, rows * row_bytes) for rank, rows in moved.rows_to]
    total = sum(rows for _, rows in moved.rows_to)
    size, ghost_bytes = total * row_bytes, pool.ghosts.now
    return trace.span(name, rows=total, bytes=size, peers=peers, ghost_bytes=ghost_bytes)
