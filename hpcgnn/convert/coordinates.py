"""Edges as parallel arrays of .npy or .npz files: sources, targets, weights, relation numbers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from hpcgnn.console import Progress
from hpcgnn.convert.npy import ArrayFile
from hpcgnn.convert.source import CHUNK_EDGES, EdgeChunk, EdgeStream
from hpcgnn.errors import InputError
from hpcgnn.typing import Array

__all__ = [
    "CoordinateEdges",
    "Pairs",
    "by_relation",
    "check_vector",
    "edge_progress",
    "has_weights",
    "index_pairs",
    "locate_in",
    "vector_pairs",
]

_QUIET_BELOW_EDGES = 4_000_000

Pairs = Callable[[], Iterator[tuple[Array, Array]]]


@dataclass(frozen=True)
class CoordinateEdges:
    """`pairs()` yields sources and targets, `CHUNK_EDGES` at a time; the rest goes in step.

    `relation_ids` [num_edges] index `relations`; without them all edges belong to the first.
    """

    path: Path
    where: str
    num_edges: int
    pairs: Pairs
    weights: ArrayFile | None = None
    relation_ids: ArrayFile | None = None
    relations: tuple[str, ...] = ("",)

    def chunks(self) -> EdgeStream:
        """Yield the edges in stored order, each chunk divided by relation."""
        weights = self._in_step(self.weights)
        relation_ids = self._in_step(self.relation_ids)
        first = 0
        with edge_progress(self.path, self.num_edges) as progress:
            for src, dst in self.pairs():
                values = next(weights) if weights else None
                chunk = EdgeChunk(src, dst, partial(locate_in, self.where, first), values)
                if relation_ids:
                    yield from by_relation(chunk, next(relation_ids), self.relations)
                else:
                    yield chunk
                first += len(src)
                progress.advance(len(src))

    def _in_step(self, array: ArrayFile | None) -> Iterator[Array] | None:
        return None if array is None else array.flat(0, self.num_edges, CHUNK_EDGES)


def by_relation(chunk: EdgeChunk, ids: Array, relations: tuple[str, ...]) -> Iterator[EdgeChunk]:
    """Divide a chunk by the relation numbers `ids` of its edges; raises `InputError`."""
    wrong = (ids < 0) | (ids >= len(relations))
    if wrong.any():
        position = int(np.argmax(wrong))
        raise InputError(
            f"{chunk.locate(position)}: relation {ids[position]} is outside "
            f"0..{len(relations) - 1}; correct it or name more relations"
        )
    for number in np.flatnonzero(np.bincount(ids.astype(np.int64))):
        places = np.flatnonzero(ids == number)
        yield EdgeChunk(
            chunk.src[places],
            chunk.dst[places],
            partial(_locate_place, chunk.locate, places),
            None if chunk.weights is None else chunk.weights[places],
            relations[number],
        )


def _locate_place(locate: Callable[[int], str], places: Array, position: int) -> str:
    return locate(int(places[position]))


def locate_in(where: str, first: int, position: int) -> str:
    """Return the place of entry `first + position` of an array."""
    return f"{where}, entry {first + position}"


def vector_pairs(src: ArrayFile, dst: ArrayFile) -> Pairs:
    """Return the pairs of two vectors of whole numbers; raises `InputError`."""
    check_vector(src, "iu")
    check_vector(dst, "iu", src)
    total = src.shape[0]
    return lambda: zip(
        src.flat(0, total, CHUNK_EDGES), dst.flat(0, total, CHUNK_EDGES), strict=True
    )


def index_pairs(index: ArrayFile) -> Pairs:
    """Return the pairs of an array [2, E] of sources and targets; raises `InputError`."""
    if len(index.shape) != 2 or index.shape[0] != 2 or index.dtype.kind not in "iu":
        raise InputError(
            f"{index.where} has shape {index.shape} and dtype {index.dtype} where whole numbers "
            "[2, E] are due: sources in row 0, targets in row 1"
        )
    total = index.shape[1]
    if index.fortran_order:
        return lambda: (
            (pairs[0::2], pairs[1::2]) for pairs in index.flat(0, 2 * total, 2 * CHUNK_EDGES)
        )
    return lambda: zip(
        index.flat(0, total, CHUNK_EDGES), index.flat(total, 2 * total, CHUNK_EDGES), strict=True
    )


def has_weights(data: ArrayFile) -> bool:
    """Tell whether values say more than that an entry is there: whether any of them is not 1."""
    return any((block != 1).any() for block in data.flat(0, data.shape[0], CHUNK_EDGES))


def check_vector(array: ArrayFile, kinds: str, like: ArrayFile | None = None) -> None:
    """Raise `InputError` unless `array` is a vector of the dtype `kinds`, as long as `like`."""
    if len(array.shape) != 1 or array.dtype.kind not in kinds:
        due = "numbers" if "f" in kinds else "whole numbers"
        raise InputError(
            f"{array.where} has shape {array.shape} and dtype {array.dtype} where a vector of "
            f"{due} is due; convert it before saving"
        )
    if like is not None and array.shape != like.shape:
        raise InputError(
            f"{array.where} has {array.shape[0]} values and {like.member} has {like.shape[0]}; "
            "they must be equally long"
        )


def edge_progress(path: Path, total: int) -> Progress:
    """Return the display of reading `total` edges, silent where that takes no time."""
    return Progress(f"reading {path.name}", total, "edges", quiet=total < _QUIET_BELOW_EDGES)
