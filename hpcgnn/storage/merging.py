"""From sorted runs of edges to block rows: ranges that fit in memory, merging, duplicates."""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hpcgnn.errors import InputError
from hpcgnn.storage.blocks import CSRBlock
from hpcgnn.storage.runs import Keys, Run, key_columns, key_rows, make_keys
from hpcgnn.typing import FloatArray

__all__ = ["Duplicates", "block_rows", "keep_first", "row_ranges", "sort_edges"]

Duplicates = Literal["first", "sum", "error"]


def sort_edges(keys: Keys, weights: FloatArray | None) -> tuple[Keys, FloatArray | None]:
    """Sort edges, `keys` in place where there are no weights; equal keys keep their order."""
    if weights is None:
        keys.sort()
        return keys, None
    order = np.argsort(keys, kind="stable")
    return keys[order], weights[order]


def first_of_each(keys: Keys) -> NDArray[np.bool_]:
    """Return a mask of the first of every group of equal sorted keys."""
    mask = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=mask[1:])
    return mask


def keep_first(keys: Keys, weights: FloatArray | None) -> tuple[Keys, FloatArray | None]:
    """Drop all but the first of equal sorted keys."""
    mask = first_of_each(keys)
    if mask.all():
        return keys, weights
    return keys[mask], None if weights is None else weights[mask]


def sum_equal(keys: Keys, weights: FloatArray) -> tuple[Keys, FloatArray]:
    """Add up the weights of equal sorted keys in float64."""
    starts = np.flatnonzero(first_of_each(keys))
    if len(starts) == len(keys):
        return keys, weights
    sums = np.add.reduceat(weights, starts, dtype=np.float64)
    return keys[starts], sums.astype(weights.dtype)


def refuse_equal(keys: Keys) -> None:
    """Raise `InputError` that names the first edge that occurs twice."""
    mask = first_of_each(keys)
    if mask.all():
        return
    twice = keys[mask.argmin()][None]
    raise InputError(
        f"edge {key_columns(twice)[0]} -> {key_rows(twice)[0]} is given more than once; remove it, "
        "or choose what becomes of duplicates (first, sum)"
    )


def row_ranges(
    runs: Sequence[Run], num_nodes: int, limit: int
) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Yield row ranges in order, with the positions of their edges in each run.

    A range has at most `limit` edges and `limit` rows, or a single row.
    """
    stride = max(1, limit // (2 * max(1, len(runs))))
    samples = [run.sample_rows(stride) for run in runs]
    grid = np.arange(0, num_nodes, limit, dtype=np.int64)
    # The row after a sampled one too, so that a heavy row can stand alone.
    borders = np.unique(np.concatenate([grid, [num_nodes], *samples, *(s + 1 for s in samples)]))
    positions = [run.positions(borders) for run in runs]
    edges = np.sum(positions, axis=0) if positions else np.zeros_like(borders)
    at = 0
    while at < len(borders) - 1:
        by_edges = int(np.searchsorted(edges, edges[at] + limit, side="right")) - 1
        by_rows = int(np.searchsorted(borders, borders[at] + limit, side="right")) - 1
        end = max(at + 1, min(by_edges, by_rows))
        yield int(borders[at]), int(borders[end]), [(int(p[at]), int(p[end])) for p in positions]
        at = end


def merge_pieces(
    pieces: Sequence[tuple[Keys, FloatArray | None]], duplicates: Duplicates, *, weighted: bool
) -> tuple[Keys, FloatArray | None]:
    """Return the sorted, unique edges of pieces of runs, in the runs' order."""
    keys = np.concatenate([np.empty(0, np.uint64), *(keys for keys, _ in pieces)])
    weights: FloatArray | None = None
    if weighted:
        given = [values for _, values in pieces if values is not None]
        weights = np.concatenate([np.empty(0, np.float32), *given])
    if len(pieces) > 1:
        keys, weights = sort_edges(keys, weights)
    if duplicates == "error":
        refuse_equal(keys)
    elif duplicates == "sum" and weights is not None:
        return sum_equal(keys, weights)
    return keep_first(keys, weights)


def add_loops(
    keys: Keys, weights: FloatArray | None, start: int, stop: int
) -> tuple[Keys, FloatArray | None]:
    """Give each of the rows `start` to `stop` - 1 that lacks a self loop one of weight 1."""
    nodes = np.arange(start, stop, dtype=np.int64)
    keys = np.concatenate([keys, make_keys(nodes, nodes)])
    if weights is not None:
        weights = np.concatenate([weights, np.ones(len(nodes), weights.dtype)])
    return keep_first(*sort_edges(keys, weights))


def block_rows(
    runs: Sequence[Run],
    num_nodes: int,
    limit: int,
    duplicates: Duplicates,
    *,
    weighted: bool,
    loops: bool,
) -> Iterator[CSRBlock]:
    """Yield all rows of the merged runs as blocks of about `limit` edges.

    `loops` adds the missing self loops. Raises `InputError` for refused duplicates.
    """
    for start, stop, places in row_ranges(runs, num_nodes, limit):
        pieces = [
            run.piece(low, high)
            for run, (low, high) in zip(runs, places, strict=True)
            if high > low
        ]
        keys, weights = merge_pieces(pieces, duplicates, weighted=weighted)
        if loops:
            keys, weights = add_loops(keys, weights, start, stop)
        degrees = np.bincount(key_rows(keys) - start, minlength=stop - start)
        indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
        yield CSRBlock(indptr, key_columns(keys), weights)
