"""Graphs whose edges and features are arrays in memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hpcgnn.convert.source import (
    CHUNK_EDGES,
    EdgeChunk,
    EdgeStream,
    Features,
    FeatureStream,
    GraphSource,
    Nodes,
    TypeRange,
    check_array,
    locate_in,
)
from hpcgnn.errors import InputError
from hpcgnn.storage import EdgeColumns, EdgeData
from hpcgnn.typing import Array


@dataclass(frozen=True, slots=True)
class Edges:
    """Sources, targets, weights and features [E, F] of the edges of one relation."""

    src: Array
    dst: Array
    weights: Array | None = None
    features: Array | None = None


def array_source(
    path: Path,
    edges: Mapping[str, Edges],
    num_nodes: int,
    nodes: Nodes,
    ends: Mapping[str, tuple[TypeRange, TypeRange]] | None = None,
    *,
    inputs: tuple[Path, ...] = (),
    ignored: tuple[str, ...] = (),
) -> GraphSource:
    """Return a graph of arrays; `path` stands for it in messages.

    `ends` are the types of the sources and targets of each relation, where nodes are numbered by
    type. Raises `InputError` for arrays that do not fit together.
    """
    for relation, each in edges.items():
        _check_edges(f"{path}: edges {relation}".rstrip(), each)
    return GraphSource(
        path=path,
        edges=partial(_stream, str(path), edges, ends or {}),
        inputs=inputs,
        relations=tuple(edges),
        num_nodes=num_nodes,
        columns={
            name: EdgeColumns.of(EdgeData(each.features), weighted=each.weights is not None)
            for name, each in edges.items()
        },
        nodes=nodes,
        ignored=ignored,
    )


def matrix_features(array: Array, origin: str) -> Features:
    """Return the rows of a matrix of numbers [n, f]; raises `InputError`."""
    check_array(array, f"{origin}: features", "[n, f]")

    def blocks(rows: int) -> FeatureStream:
        yield from (array[first : first + rows] for first in range(0, len(array), rows))

    return Features.of_matrix(array.shape, array.dtype, blocks, f"{origin}: features")


def _check_edges(where: str, edges: Edges) -> None:
    weights, features = edges.weights, edges.features
    arrays = (edges.src, edges.dst, weights, None if features is None else features[:, 0])
    shapes = [array.shape for array in arrays if array is not None]
    if len(set(shapes)) > 1 or len(shapes[0]) != 1:
        raise InputError(f"{where}: arrays have the shapes {shapes}; give equally long vectors")
    if weights is not None and weights.dtype.kind not in "biuf":
        raise InputError(f"{where}: weights have dtype {weights.dtype}; give numbers")


def _stream(
    origin: str, edges: Mapping[str, Edges], ends: Mapping[str, tuple[TypeRange, TypeRange]]
) -> EdgeStream:
    for relation, each in edges.items():
        where = f"{origin}: edges {relation}".rstrip()
        for first in range(0, len(each.src), CHUNK_EDGES):
            part = slice(first, first + CHUNK_EDGES)
            values = None if each.weights is None else each.weights[part]
            locate = partial(locate_in, where, first)
            data = EdgeData(each.features).take(part)
            chunk = EdgeChunk(each.src[part], each.dst[part], locate, values, relation, data)
            yield chunk.between(*ends[relation]) if ends else chunk
