"""Stream a parsed graph into a store: edges first, sorted out of core, then rows of node data."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.console import Progress
from hpcgnn.convert.edge_feed import EdgeFeed
from hpcgnn.convert.nodes import check_nodes
from hpcgnn.convert.source import ConvertOptions, Features, GraphSource, NodeKind, Nodes
from hpcgnn.errors import InputError
from hpcgnn.storage import EdgeBuilder, Split, StoreHeader, StoreWriter
from hpcgnn.typing import Array

__all__ = ["Report", "write_store"]

_NODE_ROWS = 1 << 20
_QUIET_BELOW_ROWS = 200_000
_FEATURE_DTYPES = ("float16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class Report:
    """What was written: `edges` counts stored non-zeros, `input_edges` the edges that were read.

    `zero_edges` were left out for their weight 0; `ignored` names what the store has no place for.
    `num_features` is 0 for a graph with `node_types`, each of which has its own.
    """

    path: Path
    header: StoreHeader
    num_features: int
    node_types: tuple[NodeKind, ...]
    edges: Mapping[str, int]
    input_edges: int
    zero_edges: int
    split: Mapping[str, int]
    ignored: tuple[str, ...]


def write_store(
    source: GraphSource, out: Path, options: ConvertOptions, provenance: Mapping[str, Any]
) -> Report:
    """Write `source` to `out`, where an earlier file stays whole until the new one is complete.

    Raises `InputError` for faulty input.
    """
    with ExitStack() as stack:
        builders = {
            relation: stack.enter_context(_edge_builder(source, options))
            for relation in source.relations
        }
        feed = EdgeFeed(source, options)
        feed.run(builders)
        header = _header(source, options, provenance, builders, undirected=feed.undirected)
        check_nodes(source.nodes, header.num_nodes, str(source.path))
        with StoreWriter(out, header) as writer:
            edges = {
                relation: _write_edges(builder, writer, relation, source.path)
                for relation, builder in builders.items()
            }
            _write_nodes(writer, source.nodes, options)
    features = source.nodes.features
    return Report(
        out,
        header,
        0 if features is None else features.num_columns,
        source.nodes.kinds,
        edges,
        feed.num_edges,
        feed.num_zero,
        _split_sizes(source.nodes.split),
        source.ignored,
    )


def _edge_builder(source: GraphSource, options: ConvertOptions) -> EdgeBuilder:
    with _naming(source.path):
        return EdgeBuilder(
            source.num_nodes,
            undirected=options.undirected or source.undirected,
            self_loops=options.self_loops,
            duplicates=options.duplicates,
            weighted=source.weighted,
            memory_bytes=options.memory_bytes // len(source.relations),
        )


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the name of the input before what `storage` finds wrong with its content."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _header(
    source: GraphSource,
    options: ConvertOptions,
    provenance: Mapping[str, Any],
    builders: Mapping[str, EdgeBuilder],
    *,
    undirected: bool,
) -> StoreHeader:
    num_nodes = source.num_nodes
    if num_nodes is None:
        num_nodes = max(builder.num_nodes for builder in builders.values())
    return StoreHeader(
        name=options.name or _default_name(source.path),
        num_nodes=num_nodes,
        num_classes=source.nodes.num_classes,
        multi_label=source.nodes.multi_label,
        undirected=undirected,
        class_names=source.nodes.class_names,
        node_types=tuple(kind.name for kind in source.nodes.kinds),
        provenance=provenance,
    )


def _default_name(path: Path) -> str:
    """Return the name of a folder, or of a file without its endings."""
    return path.resolve().name.removeprefix("ind.").split(".")[0] or "graph"


def _write_edges(builder: EdgeBuilder, writer: StoreWriter, relation: str, path: Path) -> int:
    rows = writer.header.num_nodes
    text = f"writing edges {relation}".rstrip()
    quiet = rows < _QUIET_BELOW_ROWS
    with Progress(text, rows, "rows", quiet=quiet) as progress, _naming(path):
        return builder.write(writer, relation, progress.advance)


def _write_nodes(writer: StoreWriter, nodes: Nodes, options: ConvertOptions) -> None:
    num_nodes = writer.header.num_nodes
    if nodes.features is not None:
        _write_features(writer.append_features, nodes.features, num_nodes, options)
    if nodes.kinds:
        _write_types(writer, nodes, options)
    for append, array in (
        (writer.append_labels, nodes.labels),
        (writer.append_split, nodes.split),
        (writer.append_original_id, nodes.original_id),
    ):
        for first in range(0, num_nodes if array is not None else 0, _NODE_ROWS):
            assert array is not None
            append(array[first : first + _NODE_ROWS])


def _write_types(writer: StoreWriter, nodes: Nodes, options: ConvertOptions) -> None:
    ends = np.cumsum([kind.num_nodes for kind in nodes.kinds])
    num_nodes = writer.header.num_nodes
    for first in range(0, num_nodes, _NODE_ROWS):
        last = min(first + _NODE_ROWS, num_nodes)
        if nodes.types is None:
            writer.append_types(np.searchsorted(ends, np.arange(first, last), side="right"))
        else:
            writer.append_types(nodes.types[first:last])
    for kind in nodes.kinds:
        if kind.features is not None:
            append = partial(writer.append_type_features, kind.name)
            _write_features(append, kind.features, kind.num_nodes, options)


def _write_features(
    append: Callable[[Array], None], features: Features, num_nodes: int, options: ConvertOptions
) -> None:
    kept = features.dtype.name if features.dtype.name in _FEATURE_DTYPES else "float32"
    dtype = np.dtype(options.dtype or kept)
    done = 0
    if num_nodes == 0:
        # A node type without nodes keeps its columns.
        append(np.empty((0, features.num_columns), dtype))
    quiet = num_nodes < _QUIET_BELOW_ROWS
    with (
        Progress("writing features", num_nodes, "rows", quiet=quiet) as progress,
        closing(features.blocks()) as blocks,
    ):
        for block in blocks:
            rows = _finite_rows(block, dtype, features, done)
            done += len(rows)
            if done > num_nodes:
                break
            append(rows)
            progress.advance(len(rows))
    if done != num_nodes:
        count = "more" if done > num_nodes else f"only {done}"
        raise InputError(
            f"{features.locate(min(done, num_nodes))}: there are {count} "
            f"feature rows for {num_nodes} nodes; give one row a node"
        )


def _finite_rows(block: Array, dtype: np.dtype[Any], features: Features, first: int) -> Array:
    with np.errstate(over="ignore"):
        rows = block.astype(dtype, copy=False)
    finite = np.isfinite(rows)
    if not finite.all():
        row, column = (int(i) for i in np.unravel_index(np.argmin(finite), rows.shape))
        raise InputError(
            f"{features.locate(first + row)}: the feature in column {column + 1} is "
            f"{rows[row, column]} as {dtype}; replace it by a finite number"
        )
    return rows


def _split_sizes(split: Array | None) -> dict[str, int]:
    if split is None:
        return {}
    counts = np.bincount(split, minlength=len(Split))
    return {part.name.lower(): int(counts[part]) for part in Split if part != Split.NONE}
