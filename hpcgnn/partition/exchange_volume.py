"""Rows that each exchange would move between the parts in one aggregation, counted serially."""

from typing import Literal, TypeAlias

import numpy as np

from hpcgnn import kernels
from hpcgnn.partition.blocks import row_positions
from hpcgnn.partition.parts import Partition
from hpcgnn.partition.pattern import CSRGraph
from hpcgnn.typing import LocalIndices, Offsets

__all__ = ["EXCHANGES", "Exchange", "exchange_volume"]

Exchange: TypeAlias = Literal["aware", "push", "joint"]
EXCHANGES: tuple[Exchange, ...] = ("aware", "push", "joint")


def exchange_volume(
    graph: CSRGraph,
    part: LocalIndices,
    num_parts: int,
    exchange: Exchange = "aware",
    *,
    threads: int = 0,
) -> dict[str, int]:
    """Return the rows that `exchange` moves in one forward aggregation, one rank a part.

    Let p own the rows and q the columns of a block. ``aware`` fetches every non-empty column of it
    from q; ``push`` has q multiply the block and send a partial sum for every non-empty row;
    ``joint`` takes a minimum vertex cover of the block, fetching its columns and having the entries
    of its rows pushed. Fetched rows and pushed partial sums both travel from q to p and are equally
    wide, so q sends p as many rows as the cover has members. A backward aggregation moves the same
    rows the other way.

    Parameters
    ----------
    graph
        The pattern that is aggregated over; entries inside a part move nothing.
    part
        (n,) int32 part of each node.
    num_parts
        Number of parts; some may be empty.
    exchange
        One of `EXCHANGES`.
    threads
        OpenMP threads that cover blocks, 0 = default. The result does not depend on them.

    Returns
    -------
    dict
        ``rows_total``; ``rows_max_send`` and ``rows_max_recv``, of the busiest sender and receiver;
        ``rows_max_pair``, of the busiest ordered pair; ``lower_bound``, a total that no exchange of
        rows or partial sums goes below, equal to joint's unless a block was too large for a minimum
        cover (see `hpcgnn.kernels.vertex_cover`).

    Raises
    ------
    ValueError
        Another exchange, or a part array that does not fit the graph.
    """
    if exchange not in EXCHANGES:
        raise ValueError(f"exchange must be one of {', '.join(EXCHANGES)}, not {exchange!r}")
    partition = Partition(part, num_parts)
    partition.validate()
    if part.size != graph.num_nodes:
        raise ValueError(f"{part.size} part numbers for {graph.num_nodes} nodes")
    order, starts = partition.permutation(), partition.row_starts()
    position = np.empty_like(order)
    position[order] = np.arange(order.size)
    send = np.zeros(num_parts, np.int64)
    max_recv = max_pair = lower_bound = 0
    for p in range(num_parts):
        rows = order[starts[p] : starts[p + 1]]
        columns = position[graph.indices[row_positions(graph.indptr, rows)]]
        lengths = graph.indptr[rows + 1] - graph.indptr[rows]
        counts, bound = _received(lengths, columns, starts, p, exchange, threads)
        send += counts
        max_recv = max(max_recv, int(counts.sum()))
        max_pair = max(max_pair, int(counts.max()))
        lower_bound += bound
    return {
        "rows_total": int(send.sum()),
        "rows_max_send": int(send.max()),
        "rows_max_recv": max_recv,
        "rows_max_pair": max_pair,
        "lower_bound": lower_bound,
    }


def _received(
    lengths: Offsets, columns: Offsets, starts: Offsets, p: int, exchange: Exchange, threads: int
) -> tuple[Offsets, int]:
    """Return the rows that part p receives from each part, and a lower bound of their sum.

    `lengths` are those of its rows, `columns` their entries in the order of the parts, where
    ``starts`` delimits the parts.
    """
    outside = (columns < starts[p]) | (columns >= starts[p + 1])
    row_of_entry = np.repeat(np.arange(lengths.size), lengths)[outside]
    ghosts, ghost_of_entry = np.unique(columns[outside], return_inverse=True)
    indptr = np.searchsorted(row_of_entry, np.arange(lengths.size + 1)).astype(np.int64)
    ghost_starts = np.searchsorted(ghosts, starts).astype(np.int64)
    cover = kernels.vertex_cover(
        indptr, ghost_of_entry.astype(np.int32), ghost_starts, threads=threads
    )
    bound = int(cover.lower_bound.sum())
    if exchange == "joint":
        return cover.fetched_rows + cover.pushed_rows, bound
    if exchange == "aware":
        return np.diff(ghost_starts), bound
    num_parts = starts.size - 1
    owner = np.repeat(np.arange(num_parts), np.diff(ghost_starts))[ghost_of_entry]
    pairs = np.unique(row_of_entry * num_parts + owner)
    return np.bincount(pairs % num_parts, minlength=num_parts), bound
