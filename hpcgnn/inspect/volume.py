"""What one forward aggregation on a number of ranks exchanges, counted without MPI."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.partition import Exchange, measure, read_pattern
from hpcgnn.partition import exchange_volume as rows_moved
from hpcgnn.storage import GraphStore, assign_parts

__all__ = ["exchange_volume"]


def exchange_volume(
    path: Path,
    ranks: int | None = None,
    relations: Sequence[str] = (),
    *,
    undirected: bool = False,
    exchange: Exchange = "aware",
) -> dict[str, int | float]:
    """Return the rows that `exchange` moves in one aggregation, in the store's own partition.

    Ranks (None: one a part) own consecutive parts, as in training; `relations` (none named: all)
    and `undirected` mean what graph.relations and graph.undirected mean there. ``lower_bound`` is a
    total that no exchange goes below. Raises `InputError` for more ranks than parts or an unknown
    relation.
    """
    with GraphStore.open(path) as store:
        count = store.num_parts if ranks is None else ranks
        if count < 1:
            raise InputError(f"--ranks {count}: at least 1 rank is needed")
        graph = read_pattern(store, relations, undirected)
        edges = store.part_edges(tuple(relations) or None)
        rows = np.diff(assign_parts(store.row_starts, edges, count))
    owner = np.repeat(np.arange(count, dtype=np.int32), rows)
    metrics = measure(graph, owner, count)
    return {
        "ranks": count,
        **rows_moved(graph, owner, count, exchange),
        "edge_cut": metrics.edge_cut,
        "imbalance": metrics.imbalance,
    }
