"""Graphs in the memory of a Python program as sources: the common part of the `from_` functions.

Neither torch-geometric nor DGL is imported: tensors of any library that can become a NumPy array
will do.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.convert.conversion import store_source
from hpcgnn.convert.coordinates import locate_in
from hpcgnn.convert.node_types import TypeRange, with_all_nodes
from hpcgnn.convert.nodes import SPLIT_PREFIXES, labelled, mask_column, split_from_masks
from hpcgnn.convert.pipeline import Report
from hpcgnn.convert.source import (
    CHUNK_EDGES,
    ConvertOptions,
    EdgeChunk,
    EdgeStream,
    Features,
    FeatureStream,
    GraphSource,
    Nodes,
)
from hpcgnn.errors import InputError
from hpcgnn.storage import Split, check_output
from hpcgnn.typing import Array

__all__ = ["Edges", "find_split", "node_arrays", "store_arrays", "to_array"]

Edges = tuple[Array, Array, Array | None]
"""Sources, targets and weights of one relation."""

_BLOCK_VALUES = 1 << 20


def to_array(value: Any, where: str) -> Array:
    """Return a NumPy array of a tensor on any device, or of anything NumPy takes.

    Raises `InputError` that names `where` for what does not become an array of numbers or text.
    """
    for step in ("detach", "cpu"):
        if hasattr(value, step):
            value = getattr(value, step)()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{where} is no array ({error}); convert it to NumPy first") from error
    if array.dtype.kind not in "biufSU":
        raise InputError(f"{where} has dtype {array.dtype}; give numbers")
    return array


def store_arrays(
    path: str | os.PathLike[str],
    origin: str,
    edges: Mapping[str, Edges],
    num_nodes: int,
    nodes: Nodes,
    options: ConvertOptions,
    *,
    ends: Mapping[str, tuple[TypeRange, TypeRange]] | None = None,
) -> Report:
    """Write edges and node data to the store `path`; `origin` stands for the file in messages.

    `ends` are the types of the sources and targets of each relation, where nodes are numbered by
    type.
    """
    out = Path(path)
    check_output(out)
    for relation, (src, dst, weights) in edges.items():
        _check_edges(f"{origin}: edges {relation}".rstrip(), src, dst, weights)
    source = GraphSource(
        path=Path(origin),
        edges=partial(_stream, origin, edges, ends or {}),
        inputs=(),
        relations=tuple(edges),
        num_nodes=num_nodes,
        weighted=any(weights is not None for _, _, weights in edges.values()),
        nodes=nodes,
    )
    return store_source(source, out, origin, options)


def find_split(get: Callable[[str], Any], options: ConvertOptions, origin: str) -> Array | None:
    """Return the split from the masks that `get` finds by their usual names, None without any."""
    masks = {}
    for part, prefixes in SPLIT_PREFIXES.items():
        for name in (f"{prefix}_mask" for prefix in prefixes):
            if part not in masks and (mask := get(name)) is not None:
                where = f"{origin}: {name}"
                masks[part] = mask_column(to_array(mask, where), options.split, where)
    return split_from_masks(masks, origin) if masks else None


def _check_edges(where: str, src: Array, dst: Array, weights: Array | None) -> None:
    shapes = [array.shape for array in (src, dst, weights) if array is not None]
    if len(set(shapes)) > 1 or len(shapes[0]) != 1:
        raise InputError(f"{where}: arrays have the shapes {shapes}; give equally long vectors")
    if weights is not None and weights.dtype.kind not in "biuf":
        raise InputError(f"{where}: weights have dtype {weights.dtype}; give numbers")


def _stream(
    origin: str, edges: Mapping[str, Edges], ends: Mapping[str, tuple[TypeRange, TypeRange]]
) -> EdgeStream:
    for relation, (src, dst, weights) in edges.items():
        where = f"{origin}: edges {relation}".rstrip()
        for first in range(0, len(src), CHUNK_EDGES):
            part = slice(first, first + CHUNK_EDGES)
            values = None if weights is None else weights[part]
            locate = partial(locate_in, where, first)
            chunk = EdgeChunk(src[part], dst[part], locate, values, relation)
            yield with_all_nodes(chunk, *ends[relation]) if ends else chunk


def node_arrays(
    origin: str,
    features: Any = None,
    labels: Any = None,
    split: Any = None,
    class_names: Sequence[str] = (),
) -> Nodes:
    """Return what arrays or tensors say of nodes; raises `InputError` for faulty values."""
    fields: dict[str, Any] = {}
    if features is not None:
        fields["features"] = _features(to_array(features, f"{origin}: features"), origin)
    if labels is not None:
        where = f"{origin}: labels"
        fields |= labelled(to_array(labels, where), where, class_names)
    if split is not None:
        values = to_array(split, f"{origin}: split")
        if values.ndim != 1 or not np.isin(values, list(Split)).all():
            raise InputError(
                f"{origin}: split must be a vector of 0 (none), 1 (train), 2 (valid) and 3 (test)"
            )
        fields["split"] = values.astype(np.uint8)
    return Nodes(**fields)


def _features(array: Array, origin: str) -> Features:
    if array.ndim != 2 or array.shape[1] == 0 or array.dtype.kind not in "biuf":
        raise InputError(
            f"{origin}: features have shape {array.shape} and dtype {array.dtype}; "
            "give numbers [n, f]"
        )
    rows = max(1, _BLOCK_VALUES // array.shape[1])

    def blocks() -> FeatureStream:
        yield from (array[first : first + rows] for first in range(0, len(array), rows))

    where = f"{origin}: features"
    return Features(array.shape[1], array.dtype, blocks, lambda row: f"{where}, row {row}")
