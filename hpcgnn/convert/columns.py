"""Node data in the form that a store takes: blocks of rows, with features checked on the way."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from hpcgnn import watchdog
from hpcgnn.comm import RankGroup
from hpcgnn.console import Progress
from hpcgnn.convert.read.arrays import Narrowing
from hpcgnn.convert.series import SeriesColumn
from hpcgnn.convert.source import ConvertOptions, Features, NodeArrays
from hpcgnn.errors import InputError
from hpcgnn.storage import SparseRows, StoreWriter
from hpcgnn.typing import Array

_NODE_ROWS = 1 << 20
_QUIET_BELOW_ROWS = 200_000
_FEATURE_DTYPES = ("float16", "float32", "float64")


@dataclass(frozen=True)
class NodeColumn:
    """Node data in `pieces`: arguments of the writer's method `append`; `none` is an empty one."""

    append: str
    none: tuple[Any, ...]
    pieces: Iterable[tuple[Any, ...]]

    def write(self, writer: StoreWriter) -> None:
        """Append all pieces."""
        for piece in self.pieces:
            getattr(writer, self.append)(*piece)
            watchdog.beat()


def node_columns(
    nodes: NodeArrays,
    num_nodes: int,
    options: ConvertOptions,
    ranks: RankGroup,
    places: Callable[[], Array],
) -> Iterator[NodeColumn | SeriesColumn]:
    """Yield the data of this rank's nodes, in the order of the store, and the fields of edges.

    `places` is passed to `SeriesColumn`.
    """
    own = ranks.range_of(num_nodes)
    if nodes.features is not None:
        if nodes.features.is_sparse(options):
            yield sparse_column(nodes.features, num_nodes, options, ranks)
        else:
            none, rows = _feature_rows(nodes.features, num_nodes, options, ranks)
            yield NodeColumn("append_features", (none,), zip(rows))
    if nodes.kinds:
        yield NodeColumn("append_types", (np.empty(0, np.uint8),), zip(node_types(nodes, own)))
    for kind in nodes.kinds:
        if kind.features is not None:
            none, rows = _feature_rows(kind.features, kind.num_nodes, options, ranks)
            yield NodeColumn(
                "append_type_features", (kind.name, none), zip(repeat(kind.name), rows)
            )
    arrays = nodes.arrays()
    for name in ("graph", "labels", "original_id", "weights"):
        if name in arrays:
            yield NodeColumn(f"append_{name}", (arrays[name][:0],), zip(_blocks(arrays[name])))
    for name, split in zip(split_names(nodes) or ("",), nodes.splits.values(), strict=False):
        yield NodeColumn("append_split", (split[:0], name), zip(_blocks(split), repeat(name)))
    if nodes.names is not None:
        no_names = (np.zeros(1, np.int64), np.empty(0, np.uint8))
        yield NodeColumn("append_names", no_names, nodes.names())
    if nodes.positions is not None:
        box = nodes.box or (0.0,) * nodes.positions.shape[1]
        blocks = zip(_blocks(nodes.positions), repeat(box))
        yield NodeColumn("append_positions", (nodes.positions[:0], box), blocks)
    if (series := nodes.series) is not None:
        time_axis = (series.times, series.trajectory_starts, series.unit)
        yield NodeColumn("begin_fields", time_axis, [time_axis])
        for array in series.fields:
            yield SeriesColumn(series, array, quiet=ranks.rank > 0, places=places)


def sparse_column(
    features: Features, num_nodes: int, options: ConvertOptions, ranks: RankGroup
) -> NodeColumn:
    """Return the features of this rank's nodes as sparse rows."""
    none, blocks = _feature_rows(features, num_nodes, options, ranks)
    if (matrix := features.matrix) is None:
        rows = (SparseRows.of(block).to_store() for block in blocks)
        return NodeColumn("append_sparse_features", (SparseRows.of(none).to_store(),), zip(rows))
    _check_count(features, matrix.shape[0], num_nodes)
    ones, narrowing = bool((matrix.data == 1).all()), Narrowing(none.dtype)

    def pieces() -> Iterator[SparseRows]:
        own = ranks.range_of(num_nodes)
        for first in range(own.start, own.stop, _NODE_ROWS):
            part = matrix[first : min(first + _NODE_ROWS, own.stop)]
            entries = np.flatnonzero(~np.isfinite(part.data.astype(none.dtype)))
            if len(entries):
                row = int(np.searchsorted(part.indptr, entries[0], side="right")) - 1
                narrowing.rows(part[row].toarray(), partial(_locate, features, first + row))
            indptr, indices = part.indptr.astype(np.int64), part.indices.astype(np.int32)
            yield SparseRows(indptr, indices, part.data.astype(none.dtype))

    rows = (piece.to_store(ones=ones) for piece in pieces())
    return NodeColumn(
        "append_sparse_features", (SparseRows.of(none).to_store(ones=ones),), zip(rows)
    )


def node_types(nodes: NodeArrays, rows: range) -> Iterator[Array]:
    """Yield the types of the nodes `rows` in blocks; nothing for a graph without node types."""
    if nodes.types is not None:
        yield from _blocks(nodes.types)
    elif nodes.kinds:
        ends = np.cumsum([kind.num_nodes for kind in nodes.kinds])
        for first in range(rows.start, rows.stop, _NODE_ROWS):
            numbers = np.arange(first, min(first + _NODE_ROWS, rows.stop))
            yield np.searchsorted(ends, numbers, side="right")


def split_names(nodes: NodeArrays) -> tuple[str, ...]:
    """Return the names of the splits, or () if there is none or only an unnamed one."""
    return () if set(nodes.splits) <= {""} else tuple(name or "default" for name in nodes.splits)


def row_progress(text: str, rows: int, *, quiet: bool) -> Progress:
    """Return a progress display for writing rows."""
    return Progress(text, rows, "rows", quiet=quiet or rows < _QUIET_BELOW_ROWS)


def _blocks(array: Array) -> Iterator[Array]:
    for first in range(0, len(array), _NODE_ROWS):
        yield array[first : first + _NODE_ROWS]


def _locate(features: Features, first: int, row: int) -> str:
    return features.locate(first + row)


def _feature_rows(
    features: Features, num_nodes: int, options: ConvertOptions, ranks: RankGroup
) -> tuple[Array, Iterator[Array]]:
    """Return an empty array and blocks of this rank's rows, checked, in the dtype of the store."""
    name = features.dtype.name
    dtype = options.dtype or (name if name in _FEATURE_DTYPES else "float32")
    none = np.empty((0, features.num_columns), dtype)
    narrowing = Narrowing(none.dtype)

    def blocks() -> Iterator[Array]:
        own, row = ranks.range_of(num_nodes), features.first
        # A node type without nodes keeps its number of columns.
        yield none
        progress = row_progress("writing features", len(own), quiet=ranks.rank > 0)
        with progress, closing(features.blocks()) as stream:
            for block in stream:
                rows = narrowing.rows(block, partial(_locate, features, row))
                row += len(rows)
                if row > own.stop:
                    break
                yield rows
                progress.advance(len(rows))
        _check_count(features, row, own.stop, num_nodes)

    return none, blocks()


def _check_count(features: Features, rows: int, end: int, num_nodes: int | None = None) -> None:
    if rows != end:
        count, num_nodes = "more" if rows > end else f"only {rows}", num_nodes or end
        raise InputError(
            f"{features.locate(min(rows, num_nodes))}: there are {count} "
            f"feature rows for {num_nodes} nodes; give one row a node"
        )
